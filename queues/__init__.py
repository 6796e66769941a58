"""Steps 1 and 6: a message comes in, and is settled.

spout         the contract of a spout; write your own from it
queue_spout   the built-in one: tuples from a RabbitMQ queue
spout_checks  its settings, and what it refuses
habits        what bolts count on in a spout
consuming     a message is opened, and acked or rejected in the end
message       what a message has beside its body
retry         what to do with a message that failed
values        from the body of a message to the values of a tuple, and back; typed columns
nouns         a long, an int, 1 message: in messages to people
publishing    messages into a queue; dead letters
peek          the first messages of a queue, looked at and left there
broker        connecting to RabbitMQ, and what it says of its queues
limits        the bounds
errors        what all of them raise
"""

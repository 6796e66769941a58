"""Steps 1, 8 and 9 of docs/one-message.md: a message comes in, and is acked or rejected.

spout         the contract of a spout; write your own from it
queue_spout   the built-in one: tuples from a RabbitMQ queue
habits        properties of a spout that bolts depend on
consuming     a message is opened, and acked or rejected in the end
message       properties and headers of a message
retry         decisions about a message that failed
values        from the body of a message to the values of a tuple, and back; typed columns
nouns         articles and plurals in messages: an int, 1 message
publishing    messages into a queue; dead letters
peek          the first messages of a queue, looked at and left there
broker        connecting to RabbitMQ, declaring queues and asking about them
limits        the bounds
errors        errors that all of these raise
"""

"""Steps 1, 8 and 9 of docs/one-message.md: a message arrives, and is acked or rejected.

spout         the contract of a spout; write your own from it
queue_spout   the built-in one: tuples from a RabbitMQ queue
habits        properties of a spout that bolts depend on
consuming     a message is opened, and finally acked or rejected
message       properties and headers of a message
retry         decisions about a message that failed
values        from the body of a message to the values of a tuple, and back; typed columns
nouns         articles and plurals in texts: an int, 1 message
publishing    messages into a queue; dead letters
peek          a look at the first messages of a queue, which stay there
broker        connecting to RabbitMQ, declaring queues and reading their state
limits        the bounds on what a spout task holds
outage        two log lines per outage of a server: when it begins, and when it ends
errors        errors that all modules here raise
"""

"""Connecting to RabbitMQ, and what it says of its queues.

address     an AMQP URL
connection  one connection for a moment, and errors in one line
link        one connection that comes back, on an I/O thread
frames      where pika reads what a message carries
headers     what a message carries beside its body
arguments   what a queue was declared with
declare     a quorum queue and its dead-letter queue
delays      queues from which a message comes back later
bindings    a queue and its exchanges
open_queue  the first messages of a queue, got and given back in front
depths      how many messages wait, are being worked on, and are dead
management  RabbitMQ's HTTP API
"""

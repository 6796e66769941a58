"""Connecting to RabbitMQ, and what it says of its queues.

address     an AMQP URL
connection  one connection for a moment, and errors in one line
link        one connection that comes back, on an I/O thread
frames      where pika reads what a message carries
headers     what a message carries beside its body
arguments   what a queue was declared with
declare     a quorum queue and its dead-letter queue
bindings    a queue and its exchanges
depths      how many messages wait, are being worked on, and are dead
management  RabbitMQ's HTTP API
"""

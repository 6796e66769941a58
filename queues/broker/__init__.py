"""Connecting to RabbitMQ, declaring queues and asking about them.

address     an AMQP URL
connection  one connection for a moment, and errors in one line
link        one connection that comes back, on an I/O thread
frames      pika's connection, with messages read and written in one go
headers     the header table of a message
arguments   arguments with which a queue was declared
declare     a quorum queue and its dead-letter queue
delays      queues from which a message comes back later
bindings    a queue and its exchanges
open_queue  getting the first messages of a queue, and giving them back in front
depths      numbers of messages that wait, are being worked on, and are dead
management  RabbitMQ's HTTP API
"""

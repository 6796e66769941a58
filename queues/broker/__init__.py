"""Connecting to RabbitMQ, declaring queues and asking about them.

address     an AMQP URL
connection  one connection for a moment, and errors in one line
link        one connection that comes back, on an I/O thread
frames      pika's connection, with messages read and written in one go, and their headers
arguments   arguments with which a queue was declared
declare     a quorum queue, its dead-letter queue and its exchanges
depths      numbers of messages that wait, are being worked on, and are dead
management  RabbitMQ's HTTP API; delay queues
"""

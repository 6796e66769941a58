"""Connecting to RabbitMQ, declaring queues and reading their state.

address     an AMQP URL
connection  short connections, errors in one line, and rights of a user
link        one connection that reconnects, on an I/O thread
frames      pika's connection, with messages read and written in one go, and their headers
arguments   arguments with which a queue was declared
declare     a quorum queue, its dead-letter queue and its exchanges
depths      numbers of waiting, unacked and dead messages
management  RabbitMQ's HTTP API; delay queues
"""

"""The bounds on what a spout task holds, and why they are what they are."""

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Largest body carried. RabbitMQ's own default limit from 4.0 on is the same number."""

PREFETCH = 10_000
"""Messages that a spout task holds at most, finished or not.

A pipeline with 0.3 s from delivery to ack needs 0.3 s * rate messages in flight: 10,000 feed 30,000 a second, about what one
channel delivers. Larger numbers only take messages away from the other tasks of a spout. AMQP's own limit is 65,535.
"""

BYTES_HELD = 256 * 1024 * 1024
"""Bytes of bodies that a spout task holds, more or less: above this it takes no more messages until half of it is settled.

10,000 messages of 16 MiB would be 160 GB, and RabbitMQ knows no prefetch in bytes. A consumer therefore begins with as many
messages as fit whatever their size (16), and asks for more once it has seen how large they are; see ``queues.intake``.
"""

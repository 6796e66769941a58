"""The bounds on the messages that a spout task holds, and the reasons for them."""

# Largest body of a message. RabbitMQ's own default limit is the same from 4.0 on.
MAX_BODY_BYTES = 16 * 1024 * 1024

# Most messages that a spout task holds, finished or not.
#
# It holds fewer where fewer tuples may be in flight: see ``Spout.expect``. A larger number only
# takes messages away from the other tasks of a spout, and causes more redeliveries when a worker
# dies. AMQP's own limit is 65,535.
PREFETCH = 30_000

# Most failed messages that a spout task holds in addition while they wait for their back-off, or
# its prefetch if that is smaller.
#
# Only their delivery tags are kept. A few messages that always fail must not hold up their queue.
# If more fail than this, the messages are not to blame, and the queue waits with them.
BACK_OFFS_HELD = 1_000

# Approximate bytes of messages, with their headers, that a spout task holds: above this it takes no
# more messages until half of them are settled.
#
# 30,000 messages of 16 MiB would be 480 GB, and RabbitMQ has no prefetch in bytes. A consumer
# therefore begins with the number of messages that fit at any size (16), and asks for more once it
# has seen how large they are; see ``consuming.channel.Intake``.
BYTES_HELD = 256 * 1024 * 1024

# Seconds for which an opened message may wait to be emitted. Then it is given back, and its
# consumer timeout begins anew with the next delivery.
#
# RabbitMQ closes the channel of a consumer that holds a message for 30 minutes (its consumer
# timeout), and that voids everything on it. So each message has at least 25 of these minutes left
# when it is emitted.
UNEMITTED_S = 300.0

# Longest time for which a message for later is held if it cannot lie in a delay queue: waiting to
# be emitted (``UNEMITTED_S``) and its bolts have used up part of the 30 minutes of RabbitMQ's
# consumer timeout.
HELD_LATER_S = 20 * 60.0

"""The bounds on the messages that a spout task holds, and the reasons for them."""

# Largest body carried. RabbitMQ's own default limit from 4.0 on is the same number.
MAX_BODY_BYTES = 16 * 1024 * 1024

# Messages that a spout task holds at most, finished or not.
#
# It holds fewer where fewer tuples may be in flight: see ``Spout.expect``. Larger numbers only take
# messages away from the other tasks of a spout, and are delivered again when a worker dies. AMQP's
# own limit is 65,535.
PREFETCH = 30_000

# Messages that a spout task holds besides these, while they wait for their back-off: this many, or
# as many as it may hold of the others.
#
# Only their delivery tags are kept. A few messages that always fail must not hold up their queue;
# where more fail than this, it is not the messages, and the queue waits with them.
BACK_OFFS_HELD = 1_000

# Bytes of messages, with their headers, that a spout task holds, more or less: above this it takes
# no more messages until half of it is settled.
#
# 30,000 messages of 16 MiB would be 480 GB, and RabbitMQ knows no prefetch in bytes. A consumer
# therefore begins with the number of messages that fit at any size (16), and asks for more once it
# has seen how large they are; see ``consuming.intake``.
BYTES_HELD = 256 * 1024 * 1024

# Seconds for which an opened message may wait to be emitted. Then it is given back, and comes
# again as a young one.
#
# RabbitMQ closes the channel of a consumer that holds a message for 30 minutes (its consumer
# timeout), and that voids everything on it. So each message has 25 minutes of these left when it is
# emitted, however slow the bolts before it were.
UNEMITTED_S = 300.0

# A message that is wanted later and cannot lie in a delay queue is held for this long at most: it
# may have waited for ``UNEMITTED_S``, and its bolts have had time, of the 30 minutes of RabbitMQ's
# consumer timeout.
HELD_LATER_S = 20 * 60.0

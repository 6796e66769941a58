"""A message is opened, handed out, and settled: acked when its tree is complete, or rejected.

consumer       one queue on an I/O thread; a failed message is rejected here
subscription   one consumer of a channel, begun and ended as the prefetch changes
intake         how many messages to ask for
channel        one channel from its opening to its end: what came on it
waiting        opened and not yet handed out
failures       how often each message failed
delivery_tags  which messages an ack covers
acks           when acks leave
"""

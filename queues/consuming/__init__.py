"""A message is opened, handed out, and settled: acked when its tree is complete, or rejected.

consumer           one queue on an I/O thread
consumer_settings  its queue, and whom it wakes
broker_consumer    one consumer of a channel, begun and ended as the prefetch changes
intake             how many messages to ask for
channel            one channel from its opening to its end: what came on it
channel_settings   settings that all channels of a consumer share
hand_out           opened and not yet handed out
open_messages      how each is settled: a failed message is rejected here
verbs              words for the end of an open message
copies             into the dead-letter queue, or a delay queue
failures           how often each message failed
delivery_tags      which messages an ack covers
"""

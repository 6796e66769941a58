"""A message is opened, handed out, and settled: acked when its tree is complete, or rejected.

consumer  one queue on an I/O thread: the calls of its reader
channel   one channel from its opening to its end: subscribing, deliveries, changes of the prefetch
intake    how many messages to ask for, and those that are not handed out yet
messages  the open messages, and how each is settled: acked, rejected, or copied elsewhere
failures  how often each message failed
"""

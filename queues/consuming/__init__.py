"""A message is opened, handed out, and settled: acked when its tree is complete, or rejected.

consumer  one queue on an I/O thread, and the calls of its reader
channel   one channel from opening to closing: subscribing, the prefetch, messages to hand out
messages  the open messages, and how each is settled: acked, rejected, or copied elsewhere
failures  how often each message failed
"""

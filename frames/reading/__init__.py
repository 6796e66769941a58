"""From a queue to rows.

taker          the consumers of one reader
batches        messages that were taken, until their batch is committed
slices         rows on their way to a task
session        a reader at work: takes, plans, settles
stream_reader  as Spark calls it for a stream
look           as Spark calls it for the messages that are there now
"""

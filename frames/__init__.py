"""RabbitMQ in PySpark: queues as data frames, without topologies, and without Redis.

register  registers the format "rabbitmq" in a session; the format, and its listener
options   the options that users write in ``option(…)``
columns   messages as columns, and their rows on the way to a task
readers   readers called by Spark: for a stream, and for the messages that wait now
session   a reader at work: takes, plans batches, settles
taker     the consumers of one reader
post      notices to the reader of a query: a batch is committed, a message failed
writers   writers called by Spark: rows into an exchange or a queue, confirmed
errors    the errors of these modules
"""

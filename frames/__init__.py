"""RabbitMQ in PySpark: queues as data frames, without topologies, and without Redis.

register  makes the format "rabbitmq" known to a session; the format, and its listener
options   the options that users write in ``option(…)``
columns   messages as columns, and their rows on the way to a task
readers   as Spark calls them: for a stream, and for the messages that are there now
session   a reader at work: takes, plans batches, settles
taker     the consumers of one reader
post      words to the reader of a query: a batch is committed, a message failed
writers   rows into an exchange or a queue, confirmed, as Spark calls them
errors    the errors of all these
"""

"""RabbitMQ in PySpark: queues as data frames, without topologies, and without Redis.

register  makes the format "rabbitmq" known to a session; the format, and its listener
options   the options that users write in ``option(…)``
columns   messages as columns
reading   from a queue to rows: streams, and a look at the messages that are there
post      words to the reader of a query: a batch is committed, a message failed
writing   rows into an exchange or a queue, confirmed
errors    the errors of all these
"""

"""RabbitMQ in PySpark: queues as data frames, without topologies, and without Redis.

register     makes the format "rabbitmq" known to a session
data_source  the format: which reader or writer for which call
options      what users write in ``option(…)``
columns      messages as columns
offsets      the position of a query, as Spark keeps it
reading      from a queue to rows: streams, and a look at what is there
telling      words to the reader of a query: a batch is committed, a message failed
writing      rows into an exchange or a queue, confirmed
errors       what all of it raises
"""

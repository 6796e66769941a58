"""Topologies to run and to copy from: ``tiercel run tiercel.examples.word_count:topology``.

word_count          sentences from RabbitMQ, split, counted by word in a state
arrow_word_count    the same with whole record batches, into another queue
invoices            from queue to queue
lookups             asynchronous answers from a pool of threads
webhooks            from a queue to web servers: hundreds of calls at once, with a rate limit
bulk_insert         from a queue into a database, one transaction per batch
model               a model that runs on batches, loaded once per process
quotes              request and reply
orders              from a queue into PostgreSQL, each order booked once
paid_orders         orders joined with their payments within ten minutes
payments            HTTP calls that take effect once
reliable_sentences  a custom spout that replays failed messages
random_sentences    a custom spout, and the effect of a timeout
dataframes          queues as data frames of PySpark, without a topology
"""

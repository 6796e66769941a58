"""Topologies to run and to copy from: ``tiercel run tiercel.examples.word_count:topology``.

word_count          sentences from RabbitMQ, split, counted by word in a state
arrow_word_count    the same with whole record batches, into another queue
invoices            from queue to queue
lookups             a pool of threads that answers later
webhooks            from a queue to web servers, hundreds at once, with a limit per second
bulk_insert         from a queue into a database, one transaction per batch
model               a model that works on batches, loaded once per process
quotes              request and reply
orders              into PostgreSQL, each booked once
payments            calls over HTTP that take effect once
reliable_sentences  a spout of your own that replays what failed
random_sentences    a spout of your own, and what a timeout does
dataframes          queues as data frames of PySpark, without a topology
"""

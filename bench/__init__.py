"""The cost of tiercel, measured beside the limit and the peers: ``make bench``.

topologies   the measured ones: the word count in three kinds, chains of bolts, slow work, rows
probe        what a worker told its broker, and when
processes    CPU time by what a process is
machine      the machine that is measured on
rig          a full queue, a running topology, and its private servers
server       the one server that some parts need
peers        the systems it is compared with

throughput   sentences per second
contest      runs of the peers
latency      from the scheduled time to the ack
slow         slow work: how near to work / tasks, and what waits beside it
limited      how near to a rate limit, and what waits beside a limited tenant
calls        messages through a bolt that calls a web server, many at once and one by one
batches      rows into a database, one transaction per batch and one per row
ledger       bytes per root, updates per second
inbox        what appends and hops cost
steps        a whole step of one tuple
state        what a StatefulBolt's state costs
tuples       microseconds per tuple, and where they go
properties   what the properties of a message cost
once         the cost of effects that take place once, and rows per second into PostgreSQL
growth       throughput by the size of trees, bolts in a row, messages, tasks, shards
standby      start, and idleness
scaling      a model of what grows past one machine, with the costs above
dataframes   RabbitMQ in PySpark: a script of its own

parts        how much of each
figures      what counts of it
page         the figures in docs/performance.md and README.md
plots        the curves
"""

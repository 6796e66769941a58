"""The cost of tiercel, compared with an upper bound and with peers: ``make bench``.

topologies   the measured topologies: word counts, chains of bolts, slow work, rows
probe        deliveries and acks of a process, over time
sections     CPU time of a bolt's process by activity
processes    CPU time by kind of process
machine      description of the machine
rig          private servers, full queues, running topologies
server       the Redis server that some parts need
peers        the systems that tiercel is compared with
storm        Apache Storm's own engine in local mode

throughput   sentences per second
contest      runs of the peers
activity     CPU time of a word count by activity
latency      time from the scheduled time to the ack
slow         slow work: wall time against work / tasks, and latency beside slow work
limited      accuracy of a rate limit, and latency beside a limited tenant
calls        messages through a bolt that calls a web server, concurrently and one by one
batches      rows into a database, one transaction per batch and one per row
ledger       bytes per root, updates per second
inbox        cost of appends and hops
steps        cost of a whole step of one tuple
state        cost of a StatefulBolt's state
tuples       microseconds per tuple, and a profile
properties   cost of message properties
once         cost of effects that take place once, and rows per second into PostgreSQL
windows      cost of windows, and of held tuples
growth       throughput by tree size, bolts in a row, message size, tasks, shards
standby      time to start, and CPU time while idle
executors    a model of executors and backlog over a day
scaling      a model of throughput past one machine, from the costs above
dataframes   RabbitMQ in PySpark: a separate script

parts        the parts of the benchmark, and their sizes
figures      headline figures from the measurements
page         the figures in docs/performance.md and README.md
plots        the plots
"""

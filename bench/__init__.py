"""What tiercel costs, measured beside the limit and the peers: ``make bench``.

probe        what a worker told its broker, and when
topologies   what is measured: the word count in three kinds, and chains of bolts
processes    CPU time by what a process is
machine      what is measured on
rig, server  private servers, full queues, a running topology
peers        what it is compared with

throughput   sentences a second; contest: those of the peers
latency      from the scheduled time to the ack
ledger       bytes a root, updates a second
state        what a StatefulBolt's state costs
tuples       microseconds a tuple, and where they go
growth       throughput by the size of trees, levels, messages, tasks, shards
standby      start, and idleness

parts        how much of each; figures: what counts of it; page, plots: where it is shown
"""

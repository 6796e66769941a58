"""What tiercel costs, measured beside the limit and the peers.

probe        what a worker told its broker, and when
topologies   what is measured: the word count in three kinds
processes    CPU time by what a process is
rig          private servers, full queues, a running topology
throughput   sentences a second
"""

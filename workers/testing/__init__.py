"""The test kit: a topology on simulated time. For users it is ``tiercel.testing``: docs/testing.md.

plugin          the kit as a pytest plugin
complete        complete_topology: from the first tuple to the last
cluster         LocalCluster: runs a topology
stand_ins       in the place of queue spouts and queue sinks
database_stand_in  in the place of database sinks
looking         the part of it that is asked what came of its messages
feeder          FeederSpout: emits what a test feeds it
spout_tasks     all spout tasks of a cluster
spouts          what one of them is made of: the loop is workers/spout/task
clock           simulated time
simulated_loop  the event loop of AsyncBolts, in it
ticks           the ticks that are due in it
capture         how emitted tuples are seen
engine          the contract of what runs the bolts
memory_engine   in this process, no JVM, no services
spark_engine    in Spark, on Redis
spark_run       what travels to Spark's workers
imports         where they find the test's own modules
shared          what all clusters of a process share
errors          what is raised
"""

"""The test kit: a topology on simulated time. For users it is ``tiercel.testing``: docs/testing.md.

plugin         the kit as a pytest plugin
cluster        LocalCluster and complete_topology: a whole topology in the test's thread
stand_ins      FeederSpout, which a test feeds, and stand-ins for queue spouts and for sinks
spouts         all spout tasks of a cluster, each with the loop of workers/spout/loop
engine         the contract of what runs the bolts; simulated time and its ticks; the capture of
               emitted tuples
memory_engine  the engine in this process: no JVM, no services
spark_engine   the engine in Spark, on Redis
"""

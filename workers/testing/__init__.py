"""The test kit: a topology on simulated time. Users import ``tiercel.testing``: docs/testing.md.

plugin         the kit as a pytest plugin
cluster        LocalCluster and complete_topology: a whole topology in the test's thread
stand_ins      FeederSpout, which a test feeds, and stand-ins for queue spouts and sinks
spouts         the spout tasks of a cluster, which run the loop of workers/spout/loop
engine         the contract of engines, which run the bolts; simulated time and ticks; the capture
               of emitted tuples
memory_engine  the engine in this process, without a JVM or servers
spark_engine   the engine on Spark and Redis
"""

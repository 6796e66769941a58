"""The test kit: a topology on simulated time, for users' own tests; see docs/testing.md.

cluster          LocalCluster: runs a topology             complete    complete_topology: from the first tuple to the last
feeder           FeederSpout: emits what a test feeds it   spouts      one spout task
capture          how emitted tuples are seen               clock       simulated time
engine           the contract of what runs the bolts       plugin      the kit as a pytest plugin
memory_engine    in this process, no JVM, no services      errors      what is raised
spark_engine     in Spark, on Redis
spark_job          what travels to Spark's workers         imports     where they find the test's own modules
seen_store         what they have seen, in Redis           shared      what all clusters of a process share
"""

from spark_jobs.testing.cluster import LocalCluster
from spark_jobs.testing.complete import complete_topology, feeder_for, with_spouts
from spark_jobs.testing.errors import LocalClusterError
from spark_jobs.testing.feeder import FeederSpout

__all__ = ["FeederSpout", "LocalCluster", "LocalClusterError", "complete_topology", "feeder_for", "with_spouts"]

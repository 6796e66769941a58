"""The test kit: a topology in one thread, on simulated time, for users' own tests. No JVM, no services; see docs/testing.md.

cluster     LocalCluster: runs a topology              complete    complete_topology: from the first tuple to the last
feeder      FeederSpout: emits what a test feeds it    spouts      one spout task
capture     how emitted tuples are seen                clock       simulated time
errors      what is raised
"""

from spark_jobs.testing.cluster import LocalCluster
from spark_jobs.testing.complete import complete_topology, feeder_for, with_spouts
from spark_jobs.testing.errors import LocalClusterError
from spark_jobs.testing.feeder import FeederSpout

__all__ = ["FeederSpout", "LocalCluster", "LocalClusterError", "complete_topology", "feeder_for", "with_spouts"]

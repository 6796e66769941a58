"""The test kit: a whole topology in a test, on simulated time. See docs/testing.md."""

from __future__ import annotations

from tiercel.spark_jobs.testing.cluster import LocalCluster
from tiercel.spark_jobs.testing.complete import complete_topology, feeder_for, with_spouts
from tiercel.spark_jobs.testing.errors import LocalClusterError
from tiercel.spark_jobs.testing.feeder import FeederSpout

__all__ = [
    "FeederSpout",
    "LocalCluster",
    "LocalClusterError",
    "complete_topology",
    "feeder_for",
    "with_spouts",
]

"""The test kit: a whole topology in a test, on simulated time. See docs/testing.md."""

from __future__ import annotations

from tiercel.workers.testing.cluster import LocalCluster, StartCluster, complete_topology
from tiercel.workers.testing.engine import LocalClusterError
from tiercel.workers.testing.stand_ins import (
    FeederSpout,
    PublishedMessage,
    RefusedBody,
    feeder_for,
    with_bolts,
    with_spouts,
)

__all__ = [
    "FeederSpout",
    "LocalCluster",
    "LocalClusterError",
    "PublishedMessage",
    "RefusedBody",
    "StartCluster",
    "complete_topology",
    "feeder_for",
    "with_bolts",
    "with_spouts",
]

"""Bolts with a rate limit: one for all, and one per tenant."""

from __future__ import annotations

from bench.topologies.chains import Drop
from bench.topologies.observed import ObservedSpout
from tiercel import Topology, TopologyBuilder


def limited() -> Topology:
    """One bolt with one limit over its four tasks."""
    builder = TopologyBuilder("bench-limited")
    builder.set_spout("sentences", ObservedSpout("bench-limited", fields="tenant string"))
    config = {"rate_limit": "100/s"}
    builder.set_bolt("count", Drop(), parallelism=4, config=config).shuffle_grouping("sentences")
    return builder.build()


def tenants() -> Topology:
    """One bolt whose tenants have a limit each."""
    builder = TopologyBuilder("bench-tenants")
    builder.set_spout("sentences", ObservedSpout("bench-tenants", fields="tenant string"))
    config = {"rate_limit": "1/s", "rate_limit_by": "tenant"}
    bolt = builder.set_bolt("count", Drop(), parallelism=2, config=config)
    bolt.fields_grouping("sentences", "tenant")
    return builder.build()

"""Topologies of one tuple per message: orders, counted by customer.

``bench/once.py`` compares the two.
"""

from __future__ import annotations

from typing import Any

from bench.topologies.observed import ObservedSpout
from bench.topologies.words import WordCountOnce
from tiercel import Config, StatefulBolt, Topology, TopologyBuilder
from tiercel.examples.word_count import WordCount


def ordered() -> Topology:
    """Count an order each time its message is delivered."""
    return _counted("ordered", WordCount())


def ordered_once() -> Topology:
    """Count each order once, by the id of its message."""
    return _counted("ordered_once", WordCountOnce(), identity="message_id")


def _counted(kind: str, count: StatefulBolt, **settings: Any) -> Topology:
    """``settings`` are further settings of the spout."""
    builder = TopologyBuilder(f"bench-{kind}", Config())
    builder.set_spout("orders", ObservedSpout(f"bench-{kind}", fields="word string", **settings))
    builder.set_bolt("count", count, parallelism=2).fields_grouping("orders", "word")
    return builder.build()

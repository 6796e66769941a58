"""Checks that a bolt which is to be once can be: that keys reach it, and are kept long enough."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology

# A message must not be forgotten while its copies are still in the topology.
_SHORTEST = timedelta(minutes=1)
_LONGEST = timedelta(days=10 * 365)


def check_once(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raise TopologyError if the bolt has ``once`` set and could never be."""
    bolt = spec.bolt
    once = getattr(bolt, "once", False)
    if not isinstance(once, bool):
        raise TopologyError(f"bolt {id_!r}: once must be True or False, not {once!r:.50}")
    if not once:
        return
    retention = getattr(bolt, "once_retention", _SHORTEST)
    if not isinstance(retention, timedelta) or not _SHORTEST <= retention <= _LONGEST:
        raise TopologyError(
            f"bolt {id_!r}: once_retention must be a timedelta of a minute at least and ten years "
            f"at most, not {retention!r:.50}"
        )
    # A spout of another kind may name its messages when it emits: it has no such attribute.
    spouts = sorted(_spouts_above(topology, id_, set()))
    if spouts and all(_names_none(topology, spout) for spout in spouts):
        raise TopologyError(
            f"bolt {id_!r} is to be once, and no message has an identity: give the spout "
            f'{spouts[0]!r} one, such as QueueSpout(…, identity="message_id")'
        )


def _names_none(topology: Topology, spout: str) -> bool:
    return getattr(topology.spouts[spout].spout, "identity", "its own") is None


def _spouts_above(topology: Topology, id_: str, seen: set[str]) -> Iterator[str]:
    if id_ in topology.spouts:
        yield id_
        return
    for subscription in topology.bolts[id_].subscriptions:
        if subscription.component not in seen:
            seen.add(subscription.component)
            yield from _spouts_above(topology, subscription.component, seen)

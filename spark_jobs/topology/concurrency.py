"""Numbers of tuples that bolt tasks may have under way at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tiercel.spark_jobs.bolts.bolt import ArrowBolt, AsyncBolt, BasicBolt, BatchBolt, Bolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology
from tiercel.spark_jobs.topology.limits import limit_of
from tiercel.spark_jobs.topology.placement import line_at

_CONCURRENCY = "concurrency"
_THREADS = "threads"
# Of a plain bolt: tuples of several values that have their permits at once.
_VALUES = 8


def concurrency_of(spec: BoltSpec) -> int | None:
    """Return how many tuples may be under way at once in each task of a bolt.

    None: it executes one after the other.
    """
    if isinstance(spec.bolt, AsyncBolt):
        concurrency: int = spec.overrides.get(_CONCURRENCY, spec.bolt.concurrency)
        return concurrency
    if _THREADS not in spec.overrides and (limit := limit_of(spec)) is not None:
        # One after the other, what begins in the next moment.
        return max(limit.rate.most, _VALUES if limit.by else 1)
    return spec.overrides.get(_THREADS)


def threads_of(spec: BoltSpec) -> int:
    """Return how many tuples are in ``execute`` at once in each task of a ``BasicBolt`` whose calls
    are under way.
    """
    threads: int = spec.overrides.get(_THREADS, 1)
    return threads


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Properties of a topology that say how many tuples are enough for its tasks."""

    # Bolts in a row.
    depth: int = 1
    # Tuples that all bolts together execute at once, divided by the number of spout tasks.
    places: int = 1
    # True if tuples wait in the inboxes of several tasks, not in a line that free tasks pull from.
    dealt: bool = False

    @classmethod
    def of(cls, topology: Topology) -> Shape:
        """Read the shape of a topology."""
        bolts = topology.bolts
        places = sum(one.parallelism * (concurrency_of(one) or 1) for one in bolts.values())
        return cls(
            depth=topology.depth,
            places=-(-places // max(1, topology.spout_tasks)),
            dealt=any(
                one.parallelism > 1 and line_at(topology, topology.task_ids(bolt)[0]) is None
                for bolt, one in bolts.items()
            ),
        )


def check_concurrency(id_: str, spec: BoltSpec) -> None:
    """Raises TopologyError for a bolt that cannot have what its settings ask for."""
    bolt = spec.bolt
    kind = next(
        base.__name__
        for base in (AsyncBolt, StatefulBolt, BasicBolt, Bolt, BatchBolt, ArrowBolt)
        if isinstance(bolt, base)
    )
    if _CONCURRENCY in spec.overrides and not isinstance(bolt, AsyncBolt):
        raise TopologyError(
            f"bolt {id_!r} has a concurrency, which is for an AsyncBolt; this is of the kind {kind}"
        )
    if _THREADS in spec.overrides and (
        isinstance(bolt, StatefulBolt) or not isinstance(bolt, BasicBolt)
    ):
        raise TopologyError(
            f"bolt {id_!r} has threads, which are for a BasicBolt; this is of the kind {kind}: "
            "raise its parallelism"
        )
    places = concurrency_of(spec)
    setting = _CONCURRENCY if isinstance(bolt, AsyncBolt) else _THREADS
    if places is None and setting not in spec.overrides:
        return
    if not isinstance(places, int) or isinstance(places, bool) or places < 1:
        raise TopologyError(
            f"bolt {id_!r} has {setting} {places!r:.60}: it must be a whole number, at least 1"
        )

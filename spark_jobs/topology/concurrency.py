"""Numbers of tuples that a bolt task may have under way at once. Pure."""

from __future__ import annotations

from tiercel.spark_jobs.bolts.arrow_bolt import ArrowBolt
from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.batch_bolt import BatchBolt
from tiercel.spark_jobs.bolts.bolt import BasicBolt, Bolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.graph import BoltSpec

_CONCURRENCY = "concurrency"
_THREADS = "threads"


def concurrency_of(spec: BoltSpec) -> int | None:
    """Return how many tuples may be under way at once in each task of a bolt.

    None: it executes one after the other.
    """
    if isinstance(spec.bolt, AsyncBolt):
        concurrency: int = spec.overrides.get(_CONCURRENCY, spec.bolt.concurrency)
        return concurrency
    return spec.overrides.get(_THREADS)


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

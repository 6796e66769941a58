"""Checks before anything starts that a topology can travel to Spark's Python workers.

Spark's own message is seventy lines that name no bolt.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tiercel.queues.habits import AbsentSpout, habits_of
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.reasons import RAISED, reason_of
from tiercel.spark_jobs.topology.graph import Topology


def check_travel(topology: Topology) -> None:
    """Raise TopologyError if a bolt, a grouping or a setting cannot be pickled: one line that names
    it, and the attribute.
    """
    for named, thing in _parts(topology):
        error = _stuck(thing)
        if error is None:
            continue
        attribute = next(
            (
                f", because of its attribute {name!r}"
                for name, value in getattr(thing, "__dict__", {}).items()
                if _stuck(value) is not None
            ),
            "",
        )
        raise TopologyError(
            f"{named} cannot travel to Spark{attribute}: {reason_of(error)}; make what cannot be "
            "pickled in prepare, not in __init__"
        )


def without_spouts(topology: Topology) -> Topology:
    """Return the topology as bolts need it: spouts stay where they are, and may hold anything."""
    spouts = {
        component: replace(spec, spout=AbsentSpout(habits_of(spec.spout)))
        for component, spec in topology.spouts.items()
    }
    return replace(topology, spouts=spouts)


def _parts(topology: Topology) -> Iterator[tuple[str, Any]]:
    yield "the topology's config", topology.config
    for component, spec in topology.bolts.items():
        yield f"bolt {component!r}", spec.bolt
        yield f"the settings of bolt {component!r}", dict(spec.overrides)
        for one in spec.subscriptions:
            yield f"the grouping of bolt {component!r} on {one.component!r}", one.grouping


def _stuck(thing: Any) -> BaseException | None:
    """Return why it cannot be pickled; None if it can."""
    try:
        pickle.dumps(thing)
    except RAISED:
        # Spark pickles more than Python does: lambdas, and functions defined in functions. PySpark
        # takes half a second to import, for topologies that need it.
        from pyspark import cloudpickle  # noqa: PLC0415

        try:
            cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
        except RAISED as error:
            return error
    return None

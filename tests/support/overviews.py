"""Overviews of topologies that never ran, made from fake figures."""

from __future__ import annotations

from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import Counted
from tiercel.workers.control.registry import Component, Edge, Graph
from tiercel.workers.monitoring.findings import ServerProblems
from tiercel.workers.monitoring.health import findings_of, graded
from tiercel.workers.monitoring.overview import overview_of
from tiercel.workers.monitoring.rows import Readings


def edge(source, target, stream="default", grouping="shuffle"):
    return Edge(source=source, stream=stream, target=target, grouping=grouping)


def overview(*edges, spouts=("lines",), **changed):
    """Build an overview with one task per component: 1 of each spout, 2 of each bolt."""
    bolts = dict.fromkeys(edge.target for edge in edges)
    graph = Graph(
        spouts=tuple(Component(name=name, tasks=(1,), queue="q") for name in spouts),
        bolts=tuple(Component(name=name, tasks=(2,)) for name in bolts),
        edges=edges,
        shards=1,
    )
    given = {
        "graph": graph,
        "counted": Counted(counts={}, seconds=0),
        "present": {},
        "state": None,
        "driver": False,
        "inboxes": {},
        "census": Census(pending=0, memory_bytes=0, feed_entries=0, feed_lag_s=0),
        "errors": [],
    }
    return overview_of("t", Readings(**{**given, **changed}))


NO_PROBLEMS = ServerProblems()


def health_of(seen, problems=NO_PROBLEMS):
    """Judge one reading alone; findings that one reading may see by chance are included."""
    return graded(seen, list(findings_of(seen, problems)))


def bolt_counts(executed, busy):
    """Return counts per thousand seconds of a task that is busy for this share of its time."""
    return {"executed": executed, "execute_ns": round(busy * 1e12)}

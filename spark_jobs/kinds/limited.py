"""The line before the rate limit of a bolt, for one of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tiercel.queues.habits import habits_of
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.calls.limit_line import MOST_HELD, LimitLine, LineSettings
from tiercel.spark_jobs.kinds.calls.line import OpenLine
from tiercel.spark_jobs.kinds.calls.returns import Returns
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.arrivals import waiting_roots
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology
from tiercel.spark_jobs.topology.grouping import Fields, key_digest
from tiercel.spark_jobs.topology.limits import BoltLimit, limit_of
from tiercel.spark_jobs.topology.ordering import ordered_by_of
from tiercel.spark_jobs.topology.placement import line_at

# What begins in this time waits in the task: longer than most messages live, and far shorter than
# the time for which a broker lets a message be held.
_HELD_S = 60.0


def line_of(around: Around, task: int) -> OpenLine:
    """Return the line of a task."""
    topology = around.topology
    component = topology.component_of(task)
    spec = topology.bolts[component]
    limit = limit_of(spec)
    if limit is None:
        return OpenLine()
    config = topology.config
    settings = LineSettings(
        task=task,
        value_of=_value_of(topology, limit),
        timeout_s=config.message_timeout_secs if config.enable_message_timeouts else None,
        **_bounds(topology, spec, limit, takes_from_line=line_at(topology, task) is not None),
    )
    return LimitLine(
        around.limits[component],
        settings,
        around.ledger,
        around.loop.time,
        partial(waiting_roots, around.inboxes, around.run, topology, task),
    )


def _bounds(
    topology: Topology, spec: BoltSpec, limit: BoltLimit, *, takes_from_line: bool
) -> dict[str, Any]:
    interval_s = limit.rate.interval_us / 1e6
    soon = max(1, min(MOST_HELD, int(_HELD_S / interval_s)))
    goes_back = (limit.by or interval_s > _HELD_S) and _may_go_back(topology, spec)
    if goes_back:
        # What waits for one value is with the tasks that were free, which may be any one of them.
        shared = _is_grouped_by(spec, limit.by) or takes_from_line
        share = 1 if shared else spec.parallelism
        # Untracked tuples cannot go back.
        return {
            "most_per_value": soon,
            "most": 2 * MOST_HELD,
            "returns": Returns(interval_s * share),
        }
    mine = max(1, soon // spec.parallelism)
    return {"most_per_value": soon, "most": MOST_HELD if limit.by else mine}


def _may_go_back(topology: Topology, spec: BoltSpec) -> bool:
    """Return True if all spouts bring messages again at a time, and no order would suffer."""
    return not ordered_by_of(spec) and all(
        habits_of(one.spout).retries_later for one in topology.spouts.values()
    )


def _is_grouped_by(spec: BoltSpec, fields: tuple[str, ...]) -> bool:
    """Return True if all tuples of one value come to one task."""
    return bool(fields) and all(
        type(one.grouping) is Fields and set(one.grouping.fields) <= set(fields)
        for one in spec.subscriptions
    )


def _value_of(topology: Topology, limit: BoltLimit) -> Callable[[Call], bytes]:
    if not limit.by:
        return lambda _call: b""
    digests: dict[tuple[str, str], Callable[[Sequence[Any]], bytes]] = {}

    def value_of(call: Call) -> bytes:
        tup = call.tup
        stream = (tup.source_component, tup.source_stream)
        find = digests.get(stream)
        if find is None:
            source = topology.spec(tup.source_component)
            find = digests[stream] = key_digest(source.streams[tup.source_stream], limit.by)
        return find(tup.values)

    return value_of

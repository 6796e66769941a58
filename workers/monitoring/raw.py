"""The figures of a topology as they were read at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiercel.acker.inbox.records import InboxFigures
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import ErrorReport
from tiercel.acker.metrics.traces import KnownError
from tiercel.acker.metrics.windows import Counted, Counts
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.contract import State
from tiercel.workers.control.graph import Graph
from tiercel.workers.control.spout_seats import Presence


@dataclass(frozen=True, kw_only=True, slots=True)
class Raw:
    """Everything that was read of a topology."""

    graph: Graph
    counted: Counted
    present: Mapping[int, Presence]
    state: State | None
    # A driver has the topology's lease.
    driver: bool
    # By bolt task.
    inboxes: Mapping[int, InboxFigures]
    census: Census
    # Newest first.
    errors: Sequence[ErrorReport]
    # 0: messages never time out.
    message_timeout_s: float = 0.0
    # Of bolts that are to be once: how many tuples are remembered.
    marks: Mapping[str, int] = field(default_factory=dict)
    # Kinds of errors that have a traceback.
    known_errors: Sequence[KnownError] = ()
    # Of the driver that has the lease; None: it did not say.
    driver_at: Whereabouts | None = None
    # Why no executor can run bolts, as the driver says; empty: it says nothing.
    trouble: str = ""
    # Counts per thousand seconds, over the last ten seconds.
    rates: Counts = field(default_factory=dict)

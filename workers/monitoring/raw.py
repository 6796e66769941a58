"""The figures of a topology as they were read at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from acker import Census, Counted, ErrorReport
from acker.windows import Counts
from queues.inbox.records import InboxFigures
from workers.control import Presence, State
from workers.monitoring.graph import Graph


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
    # Counts per thousand seconds, over the last ten seconds.
    rates: Counts = field(default_factory=dict)

"""One tuple under way, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiercel.queues.inbox.chunk import Lineage
from tiercel.spark_jobs.bolts.tuples import Tuple


@dataclass(frozen=True, slots=True)
class CallEmission:
    """One emission, as the bolt gave it."""

    values: tuple[Any, ...]
    stream: str
    # Of a direct stream: the receiver.
    task: int | None = None


@dataclass(eq=False, kw_only=True, slots=True)
class Call:
    """One call of ``execute``. Its outcome belongs to the caller's threads until it has ended."""

    tup: Tuple
    # Of the chunk that has the tuple, whose row there is ``tup.row``; None: the step has it.
    lineage: Lineage | None = None
    # Position of that chunk in the inbox; None: the task's own tick, or a call within a step.
    position: str | None = None
    # In the order of arrival; given by the flight.
    number: int = 0
    emissions: list[CallEmission] = field(default_factory=list)
    # Reported by the bolt, without effect on the tuple.
    reports: list[BaseException | str] = field(default_factory=list)
    # Raised by it.
    error: BaseException | None = None
    took_ns: int = 0
    ended: bool = False

"""Errors by kind: the first traceback of each, their number, and the time of the last. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tiercel.acker.ledger import REASON_LENGTH
from tiercel.acker.metrics.windows import Counts

# Kinds per topology; beyond this the kind that has not come for the longest is forgotten.
TRACES_KEPT = 100
_PREFIX = "raised:"
_NAME_LENGTH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceReport:
    """One error of one task. Component, kind and place say which of all errors it is."""

    # Aware, UTC.
    at: datetime
    component: str
    task: int
    # Class of the exception: ``KeyError``.
    kind: str
    # Line of the user's code: ``helpers.py:12``; empty if it went through none.
    place: str
    # One line, at most 500 characters.
    reason: str
    # The traceback, in several lines; empty from a process that has reported it before.
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownError:
    """One kind of error of one component: its first report, and its count."""

    first: TraceReport
    # Aware, UTC.
    last: datetime
    # Errors of this kind of all tasks.
    count: int


# Identity of a kind of error: component, kind, place.
Name = tuple[str, str, str]


def name_of(report: TraceReport) -> Name:
    """Return the identity of the kind of error of a report."""
    return report.component, report.kind, report.place


def trace_counter(kind: str, place: str) -> str:
    """Return the counter that counts such errors of a task, among the task's other counters."""
    return f"{_PREFIX}{json.dumps([kind[:_NAME_LENGTH], place[:_NAME_LENGTH]])}"


def known_errors(
    reports: Iterable[tuple[TraceReport, datetime]], totals: Counts
) -> Sequence[KnownError]:
    """Join first reports, each with when it came last, and counters; the newest first.

    A process tells its counters and its tracebacks one after the other: the count is one at least.
    """
    found = [
        KnownError(first=first, last=last, count=max(1, _count(first, totals)))
        for first, last in reports
    ]
    return sorted(found, key=lambda known: known.last, reverse=True)


def _count(report: TraceReport, totals: Counts) -> int:
    counter = trace_counter(report.kind, report.place)
    tasks: Mapping[int, Mapping[str, int]] = totals.get(report.component, {})
    return sum(counts.get(counter, 0) for counts in tasks.values())


def pack_name(name: Name) -> str:
    """Pack an identity for a store."""
    return json.dumps(name)


def pack_trace(report: TraceReport) -> str:
    """Pack a report for a store; "" without a traceback, for it adds nothing to the first one."""
    if not report.text:
        return ""
    return json.dumps(
        [
            report.at.isoformat(),
            report.component,
            report.task,
            report.kind,
            report.place,
            report.reason[:REASON_LENGTH],
            report.text,
        ]
    )


def unpack_trace(packed: bytes) -> TraceReport:
    """Undo ``pack_trace``."""
    at, component, task, kind, place, reason, text = json.loads(packed)
    return TraceReport(
        at=datetime.fromisoformat(at),
        component=component,
        task=task,
        kind=kind,
        place=place,
        reason=reason,
        text=text,
    )


def moment(seconds: float) -> datetime:
    """Return the time this many seconds after the epoch."""
    return datetime.fromtimestamp(seconds, UTC)

"""Errors grouped by reason: how often each came, and when first and last. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tiercel.acker.metrics.contract import ErrorReport
from tiercel.acker.metrics.traces import KnownError
from tiercel.workers.monitoring.tracebacks import known_for

# Parts of a reason that differ from message to message: quoted texts and numbers.
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\b0x[0-9a-f]+\b|\d+(?:[.,]\d+)*")
_ECHO = re.compile(r"(.+?)\[\d+\]: (.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """All errors of one component that have one reason."""

    component: str
    # That of the last one.
    reason: str
    count: int
    # False: there were so many of them that not all were kept, and only those are counted.
    exact: bool
    # Aware, UTC.
    first: datetime
    last: datetime


@dataclass(slots=True)
class _Group:
    component: str
    reason: str
    first: datetime
    last: datetime
    known: KnownError | None
    own: int = 0
    echoed: int = 0

    def fault(self) -> Fault:
        # What a bolt raises its spout reports too, for the message that fails.
        count = self.own or self.echoed
        first = self.first
        if self.known is not None:
            count = max(count, self.known.count)
            first = min(first, self.known.first.at)
        return Fault(
            component=self.component,
            reason=self.reason,
            count=count,
            exact=self.known is not None,
            first=first,
            last=self.last,
        )


def grouped(
    errors: Iterable[ErrorReport], bolts: Collection[str], known: Sequence[KnownError] = ()
) -> list[Fault]:
    """Group reports, which come newest first; the group that came last is the first one.

    Errors of one kind that one line of the user's code raised are one group. Of others those are
    whose reasons differ in quoted texts and numbers alone.
    """
    groups: dict[Hashable, _Group] = {}
    for error in errors:
        component, reason = _source(error, bolts)
        kind = known_for(known, component, reason)
        key = (component, _VARIES.sub("…", reason) if kind is None else kind.first)
        group = groups.setdefault(key, _Group(component, reason, error.at, error.at, kind))
        group.first = min(group.first, error.at)
        if component == error.component:
            group.own += 1
        else:
            group.echoed += 1
    return [group.fault() for group in groups.values()]


def _source(error: ErrorReport, bolts: Collection[str]) -> tuple[str, str]:
    """Return the component that an error is of, and its reason."""
    found = _ECHO.fullmatch(error.message)
    if found is not None and error.component not in bolts and found[1] in bolts:
        return found[1], found[2]
    return error.component, error.message

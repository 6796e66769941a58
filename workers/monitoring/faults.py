"""Errors grouped by reason: count, first and last time, and traceback. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tiercel.acker.metrics.contract import ErrorReport, KnownError
from tiercel.workers.monitoring.wording import count, when

# Parts of a reason that vary between messages: quoted text and numbers.
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\b0x[0-9a-f]+\b|\d+(?:[.,]\d+)*")
_ECHO = re.compile(r"(.+?)\[\d+\]: (.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The errors of one component that share a reason."""

    component: str
    # The reason of the last error.
    reason: str
    count: int
    # False: older errors were dropped, and ``count`` is the number that is left.
    exact: bool
    # Aware, UTC.
    first: datetime
    last: datetime


def grouped(
    errors: Iterable[ErrorReport], bolts: Collection[str], known: Sequence[KnownError] = ()
) -> list[Fault]:
    """Group reports, which come newest first, into groups in the same order.

    Errors of one kind that the same line of the user's code raised are one group. Other errors are
    one group if their reasons differ only in quoted text and numbers.
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
        # A spout repeats the error of a bolt, for the message that fails.
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


def _source(error: ErrorReport, bolts: Collection[str]) -> tuple[str, str]:
    """Return the component that raised an error, and the reason."""
    found = _ECHO.fullmatch(error.message)
    if found is not None and error.component not in bolts and found[1] in bolts:
        return found[1], found[2]
    return error.component, error.message


def known_for(known: Iterable[KnownError], component: str, message: str) -> KnownError | None:
    """Return the known error behind a component's report; None if no traceback is kept.

    A spout repeats the error of a bolt, and names the task: ``enrich[7]: KeyError: … (a.py:1)``.
    """
    for each in known:
        first = each.first
        place = f" ({first.place})" if first.place else ""
        if (
            (component == first.component or message.startswith(f"{first.component}["))
            and message.endswith(place)
            and first.kind in message.removesuffix(place)
        ):
            return each
    return None


def heading_of(known: KnownError) -> str:
    """Return the line above a traceback: the error, its count, and its times."""
    first = known.first
    times = (
        f"once, {when(first.at)}"
        if known.count == 1
        else f"{count(known.count)} times, {when(first.at)} to {when(known.last)}"
    )
    return f"{first.component}: {first.reason} · {times} · the first one, in task {first.task}"

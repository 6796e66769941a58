"""The contract of the counters of every task of a topology, exact and not sampled, and of the last
errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from tiercel.acker.ledger import REASON_LENGTH
from tiercel.acker.metrics.traces import KnownError, TraceReport
from tiercel.acker.metrics.windows import Counted, Counts, Window


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """One error of one task, as operators see it."""

    # Aware, UTC.
    at: datetime
    component: str
    task: int
    # One line, at most 500 characters.
    message: str


def newest_first(errors: Iterable[ErrorReport]) -> list[ErrorReport]:
    """Sort by time; reports of one time stay in the order in which they came."""
    return sorted(errors, key=lambda error: error.at, reverse=True)


ERRORS_KEPT = 1000
# As in Storm: five errors per task in ten seconds.
ERRORS_A_WINDOW = 5
ERRORS_WINDOW = timedelta(seconds=10)


def by_task(errors: Sequence[ErrorReport]) -> dict[tuple[str, int], list[ErrorReport]]:
    """The errors of each (component, task), in order, clipped."""
    found: dict[tuple[str, int], list[ErrorReport]] = {}
    for error in errors:
        found.setdefault((error.component, error.task), []).append(clipped(error))
    return found


def clipped(error: ErrorReport) -> ErrorReport:
    """Return the report with a message of at most REASON_LENGTH characters."""
    return replace(error, message=error.message[:REASON_LENGTH])


class Metrics(Protocol):
    """Counters by component and task, exact as long as the counting process lives.

    Counts that a process has not yet reported when it is killed are lost, and so are those that a
    store loses. Never a message.
    """

    def add(self, component: str, task: int, counts: Mapping[str, int]) -> None:
        """Add to the named counters of one task, all in one round trip.

        Call it once per piece of work.

        When it raises RedisUnavailableError the counts are kept here: the next call sends them
        too, and a call that had taken effect although its reply was lost is not counted twice. So
        do not add them again.
        """
        ...

    def add_all(self, counts: Mapping[tuple[str, int], Mapping[str, int]]) -> None:
        """``add`` for several tasks, {(component, task): {counter: count}}, in the
        same one round trip.
        """
        ...

    def report(self, errors: Sequence[ErrorReport]) -> None:
        """Keep these errors, the newest 1000 of the topology.

        A task keeps the first five errors of each ten seconds.

        A window begins with the first error after the window before. All processes that a task runs
        in share it.
        """
        ...

    def totals(self) -> Counts:
        """Everything counted, by component, task and counter."""
        ...

    def over(self, window: Window) -> Counted:
        """Return the counts of a window that ends now, and the length of that window.

        Exact, by the clock of each machine that counts. Counts older than a day and a slot are kept
        in the totals alone.
        """
        ...

    def errors(self, limit: int = 50) -> list[ErrorReport]:
        """Return the last reports, by the time at which they happened, newest first."""
        ...

    def trace(self, reports: Sequence[TraceReport]) -> None:
        """Keep the first report of each kind of error that has a traceback, and when each kind came
        last, of the 100 kinds of the topology that came last.

        Repeating a call changes nothing. The number of errors of a kind is among the counters.
        """
        ...

    def traces(self) -> Sequence[KnownError]:
        """Return the kinds of errors that are kept, by when they came last, the newest first."""
        ...

    def clear(self) -> None:
        """Forget everything that was counted for this topology."""
        ...

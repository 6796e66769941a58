"""Verdicts that a bolt may give with a failure: never retry (``Reject``), or retry after a time
(``RetryLater``). A bolt's ``Retry`` gives a third one, to errors that it names (``TryAgain``).

A verdict that is raised or passed to ``fail`` is kept in the step's record, goes to the ledger with
the tuple's failure, and to the spout with the message's failure.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from tiercel.spark_jobs.reasons import raised, reason_given, reason_of

log = logging.getLogger(__name__)


class Reject(Exception):  # noqa: N818 - reads as an order: raise Reject("the customer is unknown")
    """Raised by a bolt: its tuple can never be processed, and retrying does not help.

    The message at each root of the tuple fails with this reason and is dead-lettered at once, after
    its first delivery.

    It can also be passed as a reason: ``collector.fail(tup, Reject("…"))``. An ``ArrowBolt``, or a
    ``BatchBolt`` with ``on_error = "split"``, that raises it is called again with halves, down to
    the single tuple. In ``flush`` and ``prepare``, which have no tuple, and in any other
    ``BatchBolt``, it is an ordinary exception: use ``collector.fail`` there.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


# A queue of RabbitMQ keeps a message for 49 days at most.
LONGEST_S = 30 * 24 * 3600.0


class RetryLater(Exception):  # noqa: N818 - reads as an order: raise RetryLater(60, "the API is busy")
    """Raised by a bolt: its tuple cannot be processed now; retry it after ``seconds``, or after a
    timedelta.

    The message at the tuple's root fails with this reason and is delivered again after that time,
    not before; meanwhile it waits at the broker, not in a worker. With ``blame=False`` the message
    is not at fault: the failure does not count towards the delivery limit of its queue, and the
    message may be retried forever.

    It can also be passed as a reason: ``collector.fail(tup, RetryLater(60))``. Raised by an
    ``ArrowBolt`` or a ``BatchBolt`` it applies to the whole batch, raised by ``flush`` to all input
    of the step.

    Raises ValueError for a time that is not from 0 to 30 days.
    """

    def __init__(self, seconds: float | timedelta, reason: str = "", *, blame: bool = True) -> None:
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if (
            not isinstance(seconds, (int, float))
            or isinstance(seconds, bool)
            or not math.isfinite(seconds)
            or not 0 <= seconds <= LONGEST_S
        ):
            raise ValueError(
                f"RetryLater takes a number of seconds from 0 to {LONGEST_S:.0f} (30 days) or a "
                f"timedelta, not {seconds!r:.60}"
            )
        super().__init__(seconds, reason)
        self.seconds = float(seconds)
        self.reason = reason
        self.blame = blame

    def __str__(self) -> str:
        when = f"again after {self.seconds:,.10g} s"
        return f"{when}: {self.reason}" if self.reason else when

    def __reduce__(self) -> tuple[type[RetryLater], tuple[float, str], dict[str, bool]]:
        return type(self), (self.seconds, self.reason), {"blame": self.blame}


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Given by a bolt's ``Retry``: the task retries the tuple, unless this was the last attempt."""

    error: BaseException


class GivenBack(RetryLater):
    """A ``RetryLater`` of tiercel itself, for tuples that only lack room or a permit: no problem,
    and not shown as one.
    """

    def __init__(self, seconds: float, reason: str = "", *, blame: bool = False) -> None:
        super().__init__(seconds, reason, blame=blame)


def is_postponed(verdict: object) -> bool:
    """Return True for a bolt's own ``RetryLater``."""
    return isinstance(verdict, RetryLater) and not isinstance(verdict, GivenBack)


def is_given_back(reason: str) -> bool:
    """Return True for the reason of a tuple that tiercel itself gave back."""
    return reason.startswith(f"{GivenBack.__name__}:")


Verdict = Reject | RetryLater | TryAgain
# The reason for a failure, and its verdict.
Failing = tuple[str, Verdict | None]


def verdict_of(error: object, where: str = "") -> Reject | RetryLater | None:
    """Return the exception or reason if it is a verdict.

    ``where`` is the method that raised it unless that is ``execute``: ``flush`` has no single tuple
    to reject, and ``prepare`` has no tuple at all.
    """
    if isinstance(error, RetryLater):
        return None if where == "prepare" else error
    return error if isinstance(error, Reject) and not where else None


class RetriedErrors(Protocol):
    """The errors after which a bolt's task retries a tuple: its ``Retry``."""

    def takes(self, error: BaseException) -> bool:
        """Return True if a tuple is retried after this error."""


def failing_for(
    reason: BaseException | type[BaseException] | str, retry: RetriedErrors | None
) -> Failing:
    """Return the failure of a tuple that the bolt fails for this reason, which may be empty, or an
    exception class, of which an exception is made as ``raise`` does.
    """
    if isinstance(reason, type) and issubclass(reason, BaseException):
        reason = reason()
    text = reason_given(reason) if reason else ""
    return text or "failed by the bolt", verdict_of(reason) or again_after(reason, retry)


def again_after(error: BaseException | str, retry: RetriedErrors | None) -> TryAgain | None:
    """Return the verdict of a bolt's ``Retry`` on an error that is no verdict itself."""
    if retry is None or not isinstance(error, BaseException):
        return None
    try:
        return TryAgain(error) if retry.takes(error) else None
    except raised() as again:
        log.warning(
            "a tuple is not retried: its Retry raised %s for %s",
            reason_of(again), reason_of(error), extra={"event": "retry_failed"},
        )  # fmt: skip
        return None

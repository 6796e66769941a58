"""Finds what a call raises for, among all that it was given: by halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

from tiercel.spark_jobs.bolts.retry_later import RetryLater
from tiercel.spark_jobs.reasons import RAISED


class Divisible(Protocol):
    """Input of one call."""

    def __len__(self) -> int: ...

    def halves(self) -> tuple[Self, Self]:
        """The first and the second half of two or more."""
        ...


P = TypeVar("P", bound=Divisible)


def by_halves(
    part: P, call: Callable[[P], None], refuse: Callable[[P, BaseException], None]
) -> None:
    """Call with the part; if that raises, with each half of it, and so on.

    ``refuse`` is called with each one that the call raises for when it stands alone, and with all
    that a call was given which raised ``RetryLater``: no one is to blame. The call must leave
    nothing behind when it raises.
    """
    try:
        call(part)
    except RAISED as error:
        if len(part) == 1 or isinstance(error, RetryLater):
            refuse(part, error)
            return
    else:
        return
    for half in part.halves():
        by_halves(half, call, refuse)

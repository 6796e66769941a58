"""``Retry``: a bolt's policy for tuples that its own task retries, in tenacity's terms. Pure.

tenacity provides the wait strategies and nothing else: its own loop sleeps between two attempts,
and a task executes other tuples meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from tenacity import (
    RetryCallState,
    wait_chain,
    wait_combine,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)

from tiercel.queues.nouns import lazy_kind
from tiercel.spark_jobs.errors import ConfigValueError

Wait = Callable[[RetryCallState], float]

_MOST_ATTEMPTS = 1_000
# A tuple that waits longer belongs at the broker: its message is unacked all the time.
_LONGEST_S = 24 * 3600.0
# Limit on all waits of one tuple if the strategy does not tell how long it may wait.
_UNKNOWN_S = 600.0


class Retry:
    """A bolt's policy for errors that often do not recur: the tuple is executed again, in place.

    * ``attempts``: how often a tuple is executed at most, 5.
    * ``wait``: the time from one attempt to the next: seconds, a timedelta, or a wait strategy of
      tenacity, such as ``wait_fixed(2)``, ``wait_exponential(max=30)`` or
      ``wait_exponential(max=30) + wait_random(0, 1)``. By default
      ``wait_random_exponential(max=10)``: up to 1 s, then up to 2, 4 and 8 s.
    * ``on``: the exceptions after which a tuple is retried: a class, several classes, or a function
      that gets the exception and returns True or False. By default all of them.

    Set it in the class, ``retry = Retry(on=HTTPError)``, or for one topology:
    ``set_bolt(…, config={"retry": Retry(attempts=3)})``.

    Guarantee: while a tuple waits, its message stays open and does not time out, the tuple takes no
    place from others, and other tuples are executed. Emissions and changes of state of an attempt
    that failed are dropped. The message timeout begins anew with each attempt. After the last
    attempt the tuple fails with the error of that attempt, as without ``retry``. If the process
    dies meanwhile, another one executes the tuple again, and may count from 1.

    ``Reject`` and ``RetryLater`` are obeyed at once, and a tuple that the bolt fails with a text
    is not retried. Raises ConfigValueError for an invalid policy.
    """

    def __init__(
        self,
        attempts: int = 5,
        wait: float | timedelta | Wait | None = None,
        on: type[BaseException]
        | tuple[type[BaseException], ...]
        | Callable[[Any], object] = Exception,
    ) -> None:
        if type(attempts) is not int or not 1 <= attempts <= _MOST_ATTEMPTS:
            raise ConfigValueError(
                f"Retry: attempts must be a whole number from 1 to {_MOST_ATTEMPTS:,}, not "
                f"{attempts!r:.60}"
            )
        self.attempts = attempts
        self.wait = _strategy(wait)
        self.on = _errors(on)
        longest = self._longest()
        # All waits of one tuple, in seconds: a wait that would exceed them is not begun.
        self.longest_s = _UNKNOWN_S if longest is None else longest
        if self.longest_s > _LONGEST_S:
            raise ConfigValueError(
                f"Retry: a tuple may wait for {_told(self.longest_s)}, and its message would be "
                f"unacked all that time; the limit is {_told(_LONGEST_S)}: lower attempts or the "
                "strategy's max, or raise RetryLater, whose messages wait in RabbitMQ"
            )

    def takes(self, error: BaseException) -> bool:
        """Return True if a tuple is retried after this error."""
        if isinstance(self.on, tuple):
            return isinstance(error, self.on)
        return bool(self.on(error))

    def next_wait_s(self, error: BaseException, attempts: int, waited_s: float) -> float | None:
        """Return the seconds until the next attempt; None if there is none.

        The tuple has had this many attempts and has waited for ``waited_s`` before them.
        """
        if attempts >= self.attempts:
            return None
        wait_s = float(self.wait(_state(attempts, error, waited_s)))
        if not wait_s >= 0:
            raise ValueError(f"the wait of its Retry is {wait_s!r}, not a number of seconds")
        return wait_s if waited_s + wait_s <= self.longest_s else None

    def __repr__(self) -> str:
        return f"Retry(attempts={self.attempts}, wait={type(self.wait).__name__}, on={self.on!r})"

    def _longest(self) -> float | None:
        error = Exception()
        waits = [_most(self.wait, _state(number, error, 0.0)) for number in range(1, self.attempts)]
        known = [wait_s for wait_s in waits if wait_s is not None]
        return sum(known) if len(known) == len(waits) else None


def _strategy(wait: float | timedelta | Wait | None) -> Wait:
    if wait is None:
        return wait_random_exponential(multiplier=1, max=10)
    if callable(wait) and not isinstance(wait, type):
        return wait
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0:
        return wait_fixed(seconds)
    raise ConfigValueError(
        "Retry: wait must be a number of seconds, a timedelta or a wait strategy of tenacity, such "
        f"as wait_exponential(max=30), not {wait!r:.60}"
    )


def _errors(on: Any) -> tuple[type[BaseException], ...] | Callable[[BaseException], bool]:
    given = on if isinstance(on, (tuple, list, set, frozenset)) else (on,)
    if given and all(isinstance(one, type) and issubclass(one, BaseException) for one in given):
        return tuple(given)
    # The coroutine of an async function would be true for every error.
    if callable(on) and not isinstance(on, type) and not lazy_kind(on):
        return cast("Callable[[BaseException], bool]", on)
    raise ConfigValueError(
        "Retry: on must be an exception class, several of them, or a plain function that gets the "
        f"exception, not {on!r:.60}"
    )


def _state(attempts: int, error: BaseException, waited_s: float) -> RetryCallState:
    """Return the view of a tuple's attempts that tenacity's strategies get."""
    state = RetryCallState(retry_object=cast("Any", None), fn=None, args=(), kwargs={})
    state.attempt_number = attempts
    state.idle_for = waited_s
    state.set_exception((type(error), error, error.__traceback__))
    return state


def _most(wait: Wait, state: RetryCallState) -> float | None:
    """Return the longest time for which a strategy may wait after an attempt; None: unknown."""
    if isinstance(wait, wait_combine):
        parts = [_most(one, state) for one in wait.wait_funcs]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None
    if isinstance(wait, wait_chain):
        at = min(state.attempt_number, len(wait.strategies)) - 1
        return _most(wait.strategies[at], state)
    # A class derived from one of these may wait for any time.
    most = _MOST.get(type(wait))
    return None if most is None else most(wait, state)


def _most_jitter(wait: Any, state: RetryCallState) -> float:
    # Older versions of tenacity say ``initial``, and have no ``min``.
    given = vars(wait)
    first = given.get("multiplier", given.get("initial"))
    plain = wait_exponential(first, given["max"], given["exp_base"], given.get("min", 0))
    return float(min(plain(state) + given["jitter"], max(plain.max, plain.min)))


_MOST: dict[type, Callable[[Any, RetryCallState], float]] = {
    **dict.fromkeys(
        (wait_fixed, wait_none, wait_incrementing, wait_exponential),
        lambda wait, state: float(wait(state)),
    ),
    wait_random: lambda wait, _: max(wait.wait_random_min, wait.wait_random_max),
    wait_random_exponential: lambda wait, state: max(
        wait.min, wait_exponential.__call__(wait, state)
    ),
    wait_exponential_jitter: _most_jitter,
}


def _told(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds > 1e9:
        return "years"
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"

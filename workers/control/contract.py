"""Orders of an operator to a running topology, and seats, which ``RedisControl`` and
``RedisPresences`` keep for all processes.

This module also parses numbers of tasks per bolt, as an operator types them and as Redis stores
them.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from tiercel.workers.errors import UsageError

log = logging.getLogger(__name__)
# An order to end lapses, so that a topology started later does not obey it.
KILL_LASTS = timedelta(minutes=1)
# Maximum number of tasks of one bolt. The driver reads each task's inbox in Redis every second, and
# a larger number is a typing error.
MOST_TASKS = 10_000
_DEFAULT = "default"
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class Seat:
    """A seat in a topology, held by at most one process."""

    # One word.
    name: str
    # Time after which the seat lapses unless it is renewed.
    lasts: timedelta


class Attendant(NamedTuple):
    """The process that holds a seat."""

    # One word, drawn by each process.
    name: str
    # The process's note about itself, one line.
    note: str


class State(enum.Enum):
    """Desired state of a topology."""

    ACTIVE = "active"
    # Spouts emit nothing; tuples in flight go on, and spouts still get their outcomes.
    DEACTIVATED = "deactivated"
    # Every process ends, with exit code 0.
    KILLED = "killed"


# Bolt to its number of tasks; None cancels an earlier order.
Change = Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebalance:
    """The last order to rebalance."""

    # Number of orders so far; 0: none.
    number: int = 0
    # Bolt to its number of tasks, as set by this order and earlier ones.
    parallelism: Mapping[str, int] = field(default_factory=dict)


NO_REBALANCE = Rebalance()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """The bolts that an operator has paused."""

    # Number of orders to pause or resume so far; 0: none.
    number: int = 0
    # Paused bolt to the time of the order, in milliseconds since the epoch.
    since_ms: Mapping[str, int] = field(default_factory=dict)


NO_PAUSES = Pauses()


class Control(Protocol):
    """The orders to one topology, as its spout tasks see them."""

    def ask(self, known: State) -> State | None:
        """Return the last order; if there is none, make ``known`` the order, and return None."""

    def paused(self) -> AbstractSet[str]:
        """Return the paused bolts; some may not exist in the topology."""

    def note_silent(self, spout: str) -> None:
        """Note, for a few seconds, that a task of a spout can send nothing: windows wait for it."""

    def close(self) -> None:
        """Release the connection. Idempotent."""


def parse_change(options: Iterable[str]) -> dict[str, int | None]:
    """Parse ``BOLT=N`` and ``BOLT=default``. Raises UsageError.

    >>> parse_change(["count=4", "split=default"])
    {'count': 4, 'split': None}
    """
    change: dict[str, int | None] = {}
    for option in options:
        bolt, equals, number = option.rpartition("=")
        if not equals or not bolt:
            raise UsageError(
                f"--parallelism {option!r}: write BOLT=N, such as --parallelism count=4"
            )
        if bolt in change:
            raise UsageError(f"--parallelism names bolt {bolt!r} twice: give one number")
        change[bolt] = None if number == _DEFAULT else _ordered(bolt, number)
    return change


def _ordered(bolt: str, number: str) -> int:
    try:
        return number_of(number)
    except ValueError:
        raise UsageError(
            f"bolt {bolt!r} cannot have {number!r} tasks: give a number from 1 to {MOST_TASKS:,}, "
            f"or {_DEFAULT} for what its code says"
        ) from None


def number_of(text: str) -> int:
    """Parse a number of tasks. Raises ValueError for any other text.

    >>> number_of("4")
    4
    """
    number = (
        int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_TASKS)) else 0
    )
    if not 1 <= number <= MOST_TASKS:
        raise ValueError(f"not a number of tasks from 1 to {MOST_TASKS:,}")
    return number


def pack(numbers: Mapping[str, int]) -> str:
    """Encode numbers of tasks as one word.

    >>> pack({"count": 4, "split words": 2})
    'count=4,split%20words=2'
    """
    return ",".join(
        f"{quote(bolt, safe='', errors='surrogatepass')}={number}"
        for bolt, number in numbers.items()
    )


def unpack(word: str) -> dict[str, int]:
    """Decode the output of ``pack``; skip parts that are none of its output.

    >>> unpack("count=4,split%20words=2,more,most=99999999999")
    {'count': 4, 'split words': 2}
    """
    numbers = {}
    for part in word.split(","):
        bolt, _, number = part.partition("=")
        with suppress(ValueError):
            numbers[unquote(bolt, errors="surrogatepass")] = number_of(number)
    return numbers


class Unreadable:
    """Logs unreadable entries of Redis, each once until it changes.

    A monitor reads them every two seconds.
    """

    def __init__(self, advice: str) -> None:
        """``advice`` ends each line: the consequence or the remedy."""
        self._advice = advice
        self._said: dict[str, int] = {}

    def pass_over(self, what: str, content: bytes, why: Exception) -> None:
        """Log that ``what`` is skipped."""
        if self._said.get(what) == hash(content):
            return
        if len(self._said) >= _MOST:
            self._said.clear()
        self._said[what] = hash(content)
        said = str(why).partition("\n")[0][:200] or type(why).__name__
        log.warning(
            "skipping %s in Redis: %s; %s",
            what,
            said,
            self._advice,
            extra={"event": "unreadable_in_redis"},
        )

"""Messages that were taken, until the batch that read them is committed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class MessageKey(NamedTuple):
    """One message that was taken."""

    place: int
    epoch: int
    tag: int


class MessageFailure(NamedTuple):
    """The reason for which a message failed."""

    reason: str
    # False: it goes to the dead-letter queue at once.
    again: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """Messages that one consumer handed out on one channel."""

    place: int
    epoch: int
    tags: list[int]


@dataclass(slots=True)
class Settlement:
    """Messages to ack at the broker, except those that failed."""

    taken: Sequence[Taken]
    failures: dict[MessageKey, MessageFailure] = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    up_to: int
    slices: list[bytes]
    settlement: Settlement


class Batches:
    """Batches by the number of messages up to which they reach. Thread-safe.

    A batch is *taken*, then *planned* (its rows are handed to Spark, as often as Spark asks for
    them), then *committed*: only then may its messages be settled, and only once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[_Batch] = deque()
        self._planned = 0

    def add(self, up_to: int, taken: Sequence[Taken], slices: list[bytes]) -> None:
        """``up_to`` is above that of all batches before."""
        with self._lock:
            self._batches.append(_Batch(up_to, slices, Settlement(taken)))

    def plan(self, after: int, up_to: int) -> list[bytes]:
        """Return the rows of the batches in this range."""
        with self._lock:
            self._planned = max(self._planned, up_to)
            return [
                piece
                for batch in self._batches
                if after < batch.up_to <= up_to
                for piece in batch.slices
            ]

    @property
    def planned(self) -> int:
        """Up to here Spark has the rows."""
        return self._planned

    @property
    def is_undecided(self) -> bool:
        """True if Spark has rows of a batch that may not be committed yet."""
        with self._lock:
            return bool(self._batches) and self._batches[0].up_to <= self._planned

    def commit(self, up_to: int) -> list[Settlement]:
        """Return the messages to settle now: those of planned batches that end there.

        A second call for the same batches returns nothing.
        """
        settlements = []
        with self._lock:
            if any(batch.up_to == up_to for batch in self._batches):
                # Spark plans no batch if its optimizer knows that no row is needed, as with
                # ``where("false")``, and commits it like any other. To go on holding them would
                # stop the query in silence when they fill the prefetch.
                self._planned = max(self._planned, up_to)
            while self._batches and self._batches[0].up_to <= min(up_to, self._planned):
                settlements.append(self._batches.popleft().settlement)
        return settlements

    def fail(self, failures: Iterable[tuple[MessageKey, MessageFailure]]) -> int:
        """Note that messages failed, until their batch is committed; returns their number.

        Messages of batches that are committed already, or of a lost channel, do not count.
        """
        count = 0
        with self._lock:
            there = [
                (taken.place, taken.epoch, frozenset(taken.tags), batch.settlement)
                for batch in self._batches
                for taken in batch.settlement.taken
            ]
            for key, failure in failures:
                for place, epoch, tags, settlement in there:
                    if (key.place, key.epoch) == (place, epoch) and key.tag in tags:
                        settlement.failures[key] = failure
                        count += 1
        return count

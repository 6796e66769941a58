"""The messages of a channel that are to be handed out, for the first time or once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Delivery(NamedTuple):
    """One opened message."""

    epoch: int
    tag: int
    body: bytes
    # Number of earlier deliveries, as the broker counts: 0 the first time, None if
    # it does not count.
    delivery_count: int | None
    # As pika's ``BasicProperties``.
    properties: Any
    # Time of delivery, in monotonic seconds.
    arrived_s: float = 0.0


class HandOut:
    """Three lines: messages that the broker delivers once more, behind them those that were
    released here, and behind these the new ones.

    So a message that failed is not held up by those that were behind it, which may wait for it
    (``ordered_by``) and fill what may be in flight.

    One thread puts messages in and may take them out again; another one takes them. A deque's ends
    are thread-safe, asking it for its length before is not.
    """

    def __init__(self) -> None:
        self._came_back: deque[Delivery] = deque()
        self._released: deque[Delivery] = deque()
        self._fresh: deque[Delivery] = deque()
        self._lines = (self._came_back, self._released, self._fresh)

    def add(self, delivery: Delivery) -> bool:
        """Put it behind all others of its line; True if there was none."""
        line = self._came_back if delivery.delivery_count else self._fresh
        line.append(delivery)
        return len(line) == 1

    def add_again(self, delivery: Delivery) -> None:
        """Before all that were not handed out yet."""
        self._released.append(delivery)

    def take(self, limit: int) -> list[Delivery]:
        """The next messages, ``limit`` at most."""
        found: list[Delivery] = []
        for line in self._lines:
            try:
                while len(found) < limit:
                    found.append(line.popleft())
            except IndexError:
                continue
        return found

    def first_while(self, which: Callable[[Delivery], bool]) -> Iterator[Delivery]:
        """Take out those at the beginning of each line, as long as they are meant."""
        for line in self._lines:
            try:
                while which(line[0]):
                    yield line.popleft()  # or the next one: the first may have been taken meanwhile
            except IndexError:
                continue

    def clear(self) -> None:
        for line in self._lines:
            line.clear()

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
    # As the broker says them; text that is not UTF-8 is bytes.
    exchange: str | bytes = ""
    routing_key: str | bytes = ""
    redelivered: bool = False


class HandOut:
    """Lines: released messages, behind them those that came from the broker, of which each priority
    has a line of its own, the highest in front.

    A queue with priorities delivers an urgent message as soon as it may deliver any; here it passes
    those that came before it and wait. These wait no longer than they would in the queue: the more
    of them are held, the fewer urgent ones can come.

    One thread puts messages in and may take them out again; another one takes them. A deque's ends
    are thread-safe, asking it for its length before is not.
    """

    def __init__(self) -> None:
        self._again: deque[Delivery] = deque()
        self._fresh: deque[Delivery] = deque()
        # By priority; those without one are in ``_fresh``.
        self._urgent: dict[int, deque[Delivery]] = {}
        # All of them, in order; never changed but replaced, for both threads read it.
        self._lines: tuple[deque[Delivery], ...] = (self._again, self._fresh)

    def add(self, delivery: Delivery) -> bool:
        """Put it behind all others of its priority; True if there was none in that line."""
        priority = delivery.properties.priority
        line = self._line_of(priority) if priority else self._fresh
        line.append(delivery)
        return len(line) == 1

    def add_again(self, delivery: Delivery) -> None:
        """Before all that were not handed out yet."""
        self._again.append(delivery)

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

    def _line_of(self, priority: int) -> deque[Delivery]:
        line = self._urgent.get(priority)
        if line is None:
            line = self._urgent[priority] = deque()
            urgent = [self._urgent[each] for each in sorted(self._urgent, reverse=True)]
            self._lines = (self._again, *urgent, self._fresh)
        return line

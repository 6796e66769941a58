"""The messages of a channel that are to be handed out, for the first time or once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
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
    # Times that it was released since.
    releases: int = 0

    @property
    def size(self) -> int:
        """Bytes of the message: its body, its headers and its other properties."""
        return len(self.body) + getattr(self.properties, "size", 0)


class HandOut:
    """Lines: messages that the broker delivers once more and, in turn with them, those that were
    released here; behind both the new ones, of which each priority has a line of its own, the
    highest in front.

    Any of them may wait for any other one that came before it (``ordered_by``), and comes once more
    if it has waited for long: so none is held up for good by those of another line.

    A queue with priorities delivers an urgent message as soon as it may deliver any; here it passes
    the new ones that came before it and wait. These wait no longer than they would in the queue:
    the more of them are held, the fewer urgent ones can come.

    One thread puts messages in and may take them out again; another one takes them. A deque's ends
    are thread-safe, asking it for its length before is not.
    """

    def __init__(self) -> None:
        self._came_back: deque[Delivery] = deque()
        self._released: deque[Delivery] = deque()
        self._fresh: deque[Delivery] = deque()
        # By priority; those without one are in ``_fresh``.
        self._urgent: dict[int, deque[Delivery]] = {}
        # The new ones, in order; never changed but replaced, for both threads read it.
        self._new: tuple[deque[Delivery], ...] = (self._fresh,)
        self._released_next = False

    def add(self, delivery: Delivery) -> bool:
        """Put it behind all others of its line; True if there was none."""
        line = self._came_back if delivery.delivery_count else self._line_of(delivery)
        line.append(delivery)
        return len(line) == 1

    def add_again(self, delivery: Delivery) -> None:
        """Before all that were not handed out yet."""
        self._released.append(delivery)

    def take(self, limit: int) -> list[Delivery]:
        """The next messages, ``limit`` at most."""
        found: list[Delivery] = []
        first = (self._came_back, self._released)
        while len(found) < limit and (first[0] or first[1]):
            line = first[self._released_next] or first[not self._released_next]
            self._released_next = not self._released_next
            with suppress(IndexError):  # taken out meanwhile
                found.append(line.popleft())
        for line in self._new:
            with suppress(IndexError):
                while len(found) < limit:
                    found.append(line.popleft())
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

    @property
    def _lines(self) -> tuple[deque[Delivery], ...]:
        return (self._came_back, self._released, *self._new)

    def _line_of(self, delivery: Delivery) -> deque[Delivery]:
        """Return the line of a new one."""
        priority = delivery.properties.priority
        if not priority:
            return self._fresh
        line = self._urgent.get(priority)
        if line is None:
            line = self._urgent[priority] = deque()
            urgent = [self._urgent[each] for each in sorted(self._urgent, reverse=True)]
            self._new = (*urgent, self._fresh)
        return line

"""Messages between the broker and the reader: lines of messages not yet handed out, and the
prefetch, which bounds the requested messages in number and in bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from tiercel.queues.limits import BACK_OFFS_HELD, BYTES_HELD, MAX_BODY_BYTES, PREFETCH


class Delivery(NamedTuple):
    """One opened message."""

    epoch: int
    tag: int
    body: bytes
    # Number of earlier deliveries by the broker's count: 0 the first time, None if it does not
    # count.
    delivery_count: int | None
    # As pika's ``BasicProperties``.
    properties: Any
    # Time of delivery, in monotonic seconds.
    arrived_s: float = 0.0
    # As the broker gives them; text that is not UTF-8 is bytes.
    exchange: str | bytes = ""
    routing_key: str | bytes = ""
    redelivered: bool = False
    # Number of releases since this delivery.
    releases: int = 0

    @property
    def size(self) -> int:
        """Bytes of the message: its body, its headers and its other properties."""
        return len(self.body) + getattr(self.properties, "size", 0)


class HandOut:
    """Lines of messages not yet handed out: redelivered messages, in turn with messages released
    here; behind both the new messages, with a line per priority, the highest in front.

    A message may wait for any earlier message (``ordered_by``), and is redelivered after a long
    wait, so no line blocks a message of another line forever.

    A queue with priorities delivers an urgent message as soon as it may deliver any; here it
    overtakes new messages that arrived earlier. These wait no longer than they would in the queue:
    the more of them are held, the fewer urgent ones can arrive.

    One thread puts messages in and may remove them again; another one takes them. The ends of a
    deque are thread-safe, but checking its length first is not.
    """

    def __init__(self) -> None:
        self._came_back: deque[Delivery] = deque()
        self._released: deque[Delivery] = deque()
        self._fresh: deque[Delivery] = deque()
        # By priority; messages without one are in ``_fresh``.
        self._urgent: dict[int, deque[Delivery]] = {}
        # Lines of new messages, in order; replaced and never changed, since both threads read it.
        self._new: tuple[deque[Delivery], ...] = (self._fresh,)
        self._released_next = False

    def add(self, delivery: Delivery) -> bool:
        """Put a message at the end of its line; return True if the line was empty."""
        line = self._came_back if delivery.delivery_count else self._line_of(delivery)
        line.append(delivery)
        return len(line) == 1

    def add_again(self, delivery: Delivery) -> None:
        """Put a released message before the new ones."""
        self._released.append(delivery)

    def take(self, limit: int) -> list[Delivery]:
        """Take the next messages, at most ``limit``."""
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
        """Take messages from the head of each line while ``which`` returns True for them."""
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
        """Return the line of a new message."""
        priority = delivery.properties.priority
        if not priority:
            return self._fresh
        line = self._urgent.get(priority)
        if line is None:
            line = self._urgent[priority] = deque()
            urgent = [self._urgent[each] for each in sorted(self._urgent, reverse=True)]
            self._new = (*urgent, self._fresh)
        return line


# Decay of the memory of a large message, per message.
_FADE = 15 / 16
# Messages held per tuple that may be in flight: its own, and the one to follow it.
_PER_TUPLE = 2
# Divisor of the prefetch: this part of it is for failed messages that are delivered again.
_AGAIN_PART = 4
# Room for messages that may fail next, per failed message waiting for its back-off.
_PER_WAITING = 2


class Intake:
    """Decides the prefetch of the one consumer of a channel. Not thread-safe.

    It is small at first, because the messages in the queue may be large, and grows when they turn
    out to be small. It is 1 while too many bytes or more messages than expected are held: then only
    one more is requested, and the queue keeps its consumer. It is 0 (no consumer) only if nothing
    is expected. Messages held when it shrinks stay held. An intake outlives its channel: messages
    of a lost channel must be let go here too.

    Messages waiting for their back-off are unacked at the broker, and use up the prefetch of their
    consumer. They are counted separately, and the prefetch is larger by their number, so a message
    that always fails holds up no other.
    """

    def __init__(self, prefetch: int = PREFETCH, bytes_held: int = BYTES_HELD) -> None:
        self._most = prefetch
        # The largest prefetch now.
        self._limit = prefetch
        self._bound = bytes_held
        # Size at which ``prefetch`` messages can be held.
        self._small = bytes_held / prefetch
        # The size to plan for: the largest of the last messages.
        self._size = float(MAX_BODY_BYTES)
        self._seen = False
        self._held = 0
        self._count = 0
        self._waiting = 0

    @property
    def held(self) -> int:
        """Number of bytes held."""
        return self._held

    @property
    def count(self) -> int:
        """Number of messages held, except those waiting for their back-off."""
        return self._count

    @property
    def waiting(self) -> int:
        """Number of messages held for their back-off. Thread-safe."""
        return self._waiting

    @property
    def again(self) -> int:
        """Bound on failed messages being delivered again at one time: the rest of the room is for
        others.
        """
        return max(1, self._limit // _AGAIN_PART)

    def expect(self, tuples: int) -> None:
        """Set the number of tuples that may be in flight; a small multiple of that many messages is
        held.

        0: take nothing.
        """
        self._limit = min(self._most, _PER_TUPLE * tuples)

    def arrived(self, size: int) -> None:
        self._held += size
        self._count += 1
        if self._seen and self._size <= self._small >= size:
            return  # all messages are small, so the prefetch is at its limit
        self._size = max(size, self._size * _FADE) if self._seen else float(size)
        self._seen = True

    def let_go(self, size: int, count: int = 1) -> None:
        """Note that ``count`` messages of ``size`` bytes together are held no longer."""
        self._held -= size
        self._count -= count

    def waits(self, size: int) -> None:
        """Note that a message begins to wait for its back-off, and let its ``size`` bytes go."""
        self._held -= size
        self._count -= 1
        self._waiting += 1

    def waited(self) -> None:
        """Note that a back-off is over; the message is held as before until it is let go."""
        self._count += 1
        self._waiting -= 1

    def wanted(self, current: int, waiting: int = 0) -> int:
        """Return the wanted prefetch, given the current one (0: no consumer), whose consumer
        delivered ``waiting`` messages that wait for their back-off.

        A change costs a round trip, so the prefetch grows only if that doubles the room left by
        waiting messages, and shrinks only if that halves it. For a new consumer RabbitMQ counts
        from zero, no matter how many messages are still held, so it gets 1 until its prefetch fits.
        """
        limit = self._limit
        if limit == 0:
            return 0
        most_waiting = max(limit, BACK_OFFS_HELD)
        if self._held > self._bound or self._waiting >= most_waiting:
            return 1
        first = max(1, self._bound // MAX_BODY_BYTES)
        affordable = min(limit, max(first, int(self._bound / max(self._size, 1.0))))
        spare = min(_PER_WAITING * self._waiting, most_waiting - self._waiting)
        fits = self._held <= self._bound // 2 and self._count <= limit
        if current <= 1 or 2 * (limit + spare) <= current:
            return affordable + spare if fits else 1
        grows = affordable >= 2 * (current - waiting)
        return affordable + spare if fits and grows else current

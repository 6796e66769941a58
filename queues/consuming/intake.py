"""The prefetch: bounds the messages to ask for, in number and in bytes."""

from __future__ import annotations

from tiercel.queues.limits import BYTES_HELD, MAX_BODY_BYTES, PREFETCH

# Decay of the memory of a large message, per message.
_FADE = 15 / 16
# Messages held for each tuple that may be in flight: one that is, and one to follow it.
_PER_TUPLE = 2


class Intake:
    """Decides the prefetch of the one consumer of a channel. Not thread-safe.

    It is small at first, because what waits in the queue may be large; it grows when messages turn
    out to be small. It is 1 while too many bytes are held, or more messages than are expected: one
    more is all that is asked for then, and the queue keeps its consumer. It is 0 (no consumer) only
    where nothing is expected. What is held when it shrinks is held on. It outlives the channel:
    what was held on one that is gone must be let go here too.
    """

    def __init__(self, prefetch: int = PREFETCH, bytes_held: int = BYTES_HELD) -> None:
        self._most = prefetch
        # The largest prefetch now.
        self._limit = prefetch
        self._bound = bytes_held
        # So large may all messages be of which ``prefetch`` are held.
        self._small = bytes_held / prefetch
        # The size to reckon with: the largest of the last messages.
        self._size = float(MAX_BODY_BYTES)
        self._seen = False
        self._held = 0
        self._count = 0

    @property
    def held(self) -> int:
        """Bytes held."""
        return self._held

    @property
    def count(self) -> int:
        """Messages held."""
        return self._count

    def expect(self, tuples: int) -> None:
        """So many tuples are in flight at most, and a small multiple of that is held.

        0: nothing is to be taken.
        """
        self._limit = min(self._most, _PER_TUPLE * tuples)

    def arrived(self, size: int) -> None:
        self._held += size
        self._count += 1
        if self._seen and self._size <= self._small >= size:
            return  # all messages are small; how small makes no difference
        self._size = max(size, self._size * _FADE) if self._seen else float(size)
        self._seen = True

    def let_go(self, size: int, count: int = 1) -> None:
        """``count`` messages of ``size`` bytes together are held no longer."""
        self._held -= size
        self._count -= count

    def wanted(self, current: int) -> int:
        """The prefetch to have, given the one there is (0: no consumer).

        A change costs a round trip, so it grows only where that doubles it, and shrinks only where
        that halves it. With a new consumer RabbitMQ counts from zero, whatever is still held: so it
        gets 1 before what it may ask for fits.
        """
        limit = self._limit
        if limit == 0:
            return 0
        if self._held > self._bound:
            return 1
        first = max(1, self._bound // MAX_BODY_BYTES)
        affordable = min(limit, max(first, int(self._bound / max(self._size, 1.0))))
        fits = self._held <= self._bound // 2 and self._count <= limit
        if current <= 1 or 2 * limit <= current:
            return affordable if fits else 1
        return affordable if fits and affordable >= 2 * current else current

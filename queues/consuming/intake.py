"""The prefetch: bounds the messages to ask for, in number and in bytes."""

from __future__ import annotations

from tiercel.queues.limits import BACK_OFFS_HELD, BYTES_HELD, MAX_BODY_BYTES, PREFETCH

# Decay of the memory of a large message, per message.
_FADE = 15 / 16
# Messages held for each tuple that may be in flight: one that is, and one to follow it.
_PER_TUPLE = 2
# Of the prefetch, the part of messages that failed and come again.
_AGAIN_PART = 4
# Room for messages that may fail next, for each that has failed and waits.
_PER_WAITING = 2


class Intake:
    """Decides the prefetch of the one consumer of a channel. Not thread-safe.

    It is small at first, because what waits in the queue may be large; it grows when messages turn
    out to be small. It is 1 while too many bytes are held, or more messages than are expected: one
    more is all that is asked for then, and the queue keeps its consumer. It is 0 (no consumer) only
    where nothing is expected. What is held when it shrinks is held on. It outlives the channel:
    what was held on one that is gone must be let go here too.

    Messages that wait for their back-off are unacked at the broker, and take room of the consumer
    over which they came. They are counted apart, and the prefetch is larger by them: a message that
    always fails holds up no other.
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
        self._waiting = 0

    @property
    def held(self) -> int:
        """Bytes held."""
        return self._held

    @property
    def count(self) -> int:
        """Messages held, without those that wait for their back-off."""
        return self._count

    @property
    def waiting(self) -> int:
        """Messages held for their back-off. On any thread."""
        return self._waiting

    @property
    def again(self) -> int:
        """Messages at most that failed and are delivered once more at one time: others have the
        rest of the room.
        """
        return max(1, self._limit // _AGAIN_PART)

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

    def waits(self, size: int) -> None:
        """A message begins to wait for its back-off, and ``size`` bytes of it are let go."""
        self._held -= size
        self._count -= 1
        self._waiting += 1

    def waited(self) -> None:
        """One waits no longer, and is held as before until it is let go."""
        self._count += 1
        self._waiting -= 1

    def wanted(self, current: int, waiting: int = 0) -> int:
        """The prefetch to have, given the one there is (0: no consumer), which has ``waiting``
        messages that wait for their back-off.

        A change costs a round trip, so it grows only where that doubles the room that these leave,
        and shrinks only where that halves it. With a new consumer RabbitMQ counts from zero,
        whatever is still held: so it gets 1 before what it may ask for fits.
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

"""How many messages to ask the broker for, so that neither their number nor their bytes grow without bound."""

from __future__ import annotations

from queues.limits import BYTES_HELD, MAX_BODY_BYTES, PREFETCH

_FADE = 15 / 16
"""How fast the memory of a large message fades, a message."""


class Intake:
    """Decides the prefetch of the one consumer of a channel. Not thread-safe.

    It is small at first, because what waits in the queue may be large; it grows when messages turn out to be small; it is
    0 (no consumer) while too many bytes are held. Messages that are on their way when it shrinks still come.
    """

    def __init__(self, prefetch: int = PREFETCH, bytes_held: int = BYTES_HELD) -> None:
        self._prefetch = prefetch
        self._bound = bytes_held
        self._probe = min(prefetch, max(1, bytes_held // MAX_BODY_BYTES))
        self._small = bytes_held / prefetch
        """So large may all messages be of which ``prefetch`` are held."""
        self._size = float(MAX_BODY_BYTES)
        """The size to reckon with: the largest of the last messages."""
        self._seen = False
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes held."""
        return self._held

    def arrived(self, size: int) -> None:
        self._held += size
        if self._seen and self._size <= self._small >= size:
            return  # as nearly always; how small they are makes no difference
        self._size = max(size, self._size * _FADE) if self._seen else float(size)
        self._seen = True

    def settled(self, size: int) -> None:
        self._held -= size

    def wanted(self, current: int) -> int:
        """The prefetch to have, given the one there is (0: no consumer).

        A change costs a round trip, so it grows only where that doubles it.
        """
        if self._held > self._bound:
            return 0
        affordable = min(self._prefetch, max(self._probe, int(self._bound / max(self._size, 1.0))))
        if current == 0:
            return affordable if self._held <= self._bound // 2 else 0
        return affordable if affordable >= 2 * current else current

"""Messages of a publisher in flight: noted on the I/O thread, read by the publishing thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tiercel.queues.errors import NackedError, QueuesError
from tiercel.queues.publishing.publication import Publication


class Unconfirmed:
    """Messages of one ``publish`` in flight, until the broker has them.

    By its place in what is published.
    """

    def __init__(self) -> None:
        # Reason for which a message will never be accepted.
        self.problem: QueuesError | None = None
        self._changed = threading.Condition()
        self._open: dict[int, Publication] = {}
        self._nacked: dict[int, NackedError] = {}
        self._size = self._confirmed = 0
        self._wanted = (-1, -1)

    def add(self, index: int, message: Publication) -> None:
        """``message`` is about to be sent."""
        with self._changed:
            self._open[index] = message
            self._size += len(message.body)

    def done(self, index: int) -> Callable[[QueuesError | None], None]:
        """Return the callback for the fate of a message that was added."""

        def done(error: QueuesError | None) -> None:
            with self._changed:
                if isinstance(error, NackedError):
                    self._nacked[index] = error
                elif error is not None:
                    self.problem = self.problem or error
                else:
                    self._size -= len(self._open.pop(index).body)
                    self._confirmed += 1
                if error is not None or self.fits(*self._wanted):
                    self._changed.notify()

        return done

    def wait(self, count: int, size: int, timeout_s: float) -> bool:
        """Wait until at most so much is in flight; False after a problem or ``timeout_s``."""
        with self._changed:
            self._wanted = (count, size)
            self._changed.wait_for(
                lambda: self.problem is not None or self.fits(count, size), timeout_s
            )
            self._wanted = (-1, -1)
            return self.fits(count, size)

    def fits(self, count: int, size: int) -> bool:
        """Return True if no more than this is in flight, and nothing went wrong."""
        return self.problem is None and len(self._open) <= count and self._size <= size

    def take_confirmed(self) -> int:
        """Return how many more were confirmed since the last call."""
        with self._changed:
            confirmed = self._confirmed
            self._confirmed = 0
            return confirmed

    @property
    def first(self) -> int:
        """The place of the first added message that the broker does not have."""
        with self._changed:
            return next(iter(self._open))

    @property
    def nacked(self) -> NackedError | None:
        """Reason for which the broker refused a message; None when none is to be offered again."""
        if not self._nacked:
            return None
        with self._changed:
            return next(iter(self._nacked.values()), None)

    def take_nacked(self, most: int | None = None) -> list[Publication]:
        """Return what was nacked, in order, ``most`` at most: to be offered again."""
        with self._changed:
            taken = sorted(self._nacked)[:most]
            for index in taken:
                del self._nacked[index]
            return [self._open[index] for index in taken]

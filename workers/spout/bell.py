"""Wakes a thread that rests because it has nothing to do."""

from __future__ import annotations

import threading


class Bell:
    """Rung by any thread, waited for by one.

    A ring that comes while it does not wait ends its next wait.

    A bare lock that is released to ring. A ``threading.Event`` makes and takes locks in Python for
    each wait; and a ``queue.SimpleQueue``, of Python 3.11 at least, waits for ever if its timeout
    ends while it takes its lock.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Thread-safe, and safe in a signal handler, whatever that has interrupted."""
        try:
            self._silent.release()
        except RuntimeError:
            return  # it was rung already

    def wait(self, timeout_s: float) -> None:
        """Return when it is rung, or after this time."""
        self._silent.acquire(timeout=timeout_s)

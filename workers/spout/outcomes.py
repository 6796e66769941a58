"""Reads the outcome feed on a thread of its own, so that a stalled Redis never stalls the spout."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

from tiercel.acker.ledger import Ledger, OutcomeFeed, Outcomes
from tiercel.workers.patience import patiently

_WAIT = timedelta(seconds=1)


class OutcomeReader:
    """Collects outcomes until they are taken."""

    def __init__(self, ledger: Ledger, owner: int, wake: Callable[[], None]) -> None:
        """Opens the feed now: outcomes of roots that are registered after this are not missed."""
        self._feed: OutcomeFeed = ledger.feed(owner)
        self._wake = wake
        self._arrived: queue.SimpleQueue[Outcomes] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outcomes", daemon=True)
        # Error that ended the thread, if it was not ``close``: the worker cannot go on without it.
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def take(self) -> list[Outcomes]:
        """All outcomes that came since the last call; never blocks."""
        taken = []
        while not self._arrived.empty():  # nothing else takes from it
            taken.append(self._arrived.get_nowait())
        return taken

    def close(self) -> None:
        self._stopped.set()
        self._feed.close()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                outcomes = patiently(self._stopped, self._feed.read, _WAIT)
                if outcomes:
                    self._arrived.put(outcomes)
                    self._wake()
        except Exception as error:  # noqa: BLE001 - handed to the worker's own thread, which ends with it
            if not self._stopped.is_set():
                self.error = error
                self._wake()

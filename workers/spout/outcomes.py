"""Outcomes on their way from the feed to the loop of a spout task."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from tiercel.acker.ledger import Ledger, OutcomeFeed, Outcomes
from tiercel.workers.lifecycle import patiently

_WAIT = timedelta(seconds=1)


class OutcomeSource(Protocol):
    """The outcomes of one spout task's roots, as its loop takes them."""

    def open(self, stopped: threading.Event, wake: Callable[[], None]) -> bool:
        """Open the feed: outcomes of roots that are registered after this are not missed.

        ``wake`` is called when there is something to take. False if ``stopped`` came first.
        """
        ...

    def take(self) -> list[Outcomes]:
        """All outcomes that came since the last call; never blocks. Raises what ended the feed."""
        ...

    def close(self) -> None:
        """Take no more. Idempotent, also when it was not opened."""
        ...


class OutcomeReader:
    """``OutcomeSource`` with a thread of its own, so that a stalled Redis never stalls
    the spout.
    """

    def __init__(self, ledger: Ledger, owner: int) -> None:
        self._ledger = ledger
        self._owner = owner
        self._feed: OutcomeFeed | None = None
        self._wake: Callable[[], None] = lambda: None
        self._arrived: queue.SimpleQueue[Outcomes] = queue.SimpleQueue()
        self._stopped = threading.Event()
        # Error that ended the thread, if it was not ``close``: the worker cannot go on without it.
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def open(self, stopped: threading.Event, wake: Callable[[], None]) -> bool:
        self._wake = wake
        feed = patiently(stopped, self._ledger.feed, self._owner)
        if feed is None:
            return False
        self._feed = feed
        self._thread = threading.Thread(target=self._run, args=[feed], name="outcomes", daemon=True)
        self._thread.start()
        return True

    def take(self) -> list[Outcomes]:
        if self._error is not None:
            raise self._error
        taken = []
        while not self._arrived.empty():  # nothing else takes from it
            taken.append(self._arrived.get_nowait())
        return taken

    def close(self) -> None:
        self._stopped.set()
        if self._feed is not None:
            self._feed.close()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self, feed: OutcomeFeed) -> None:
        try:
            while not self._stopped.is_set():
                outcomes = patiently(self._stopped, feed.read, _WAIT)
                if outcomes:
                    self._arrived.put(outcomes)
                    self._wake()
        except Exception as error:  # noqa: BLE001 - handed to the worker's own thread, which ends with it
            if not self._stopped.is_set():
                self._error = error
                self._wake()

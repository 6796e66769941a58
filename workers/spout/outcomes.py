"""Passes the outcomes of a spout task's trees from their feed to the task's loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from tiercel.acker.ledger import Ledger, OutcomeFeed, Outcomes
from tiercel.acker.redis.errors import REFUSALS
from tiercel.workers.lifecycle import patiently

_WAIT = timedelta(seconds=1)


class OutcomeSource(Protocol):
    """Source of the outcomes of one spout task's roots."""

    def open(self, stopped: threading.Event, wake: Callable[[], None]) -> bool:
        """Open the feed, which has all outcomes of roots that are registered after this call.

        ``wake`` is called when there are outcomes to take. Return False if ``stopped`` is set
        before the feed is open.
        """

    def take(self) -> list[Outcomes]:
        """Return all outcomes since the last call, without blocking.

        Raises the error that ended the feed.
        """

    def close(self) -> None:
        """Close the feed. Idempotent, and allowed before ``open``."""


class OutcomeReader:
    """``OutcomeSource`` with its own thread, so that a stalled Redis never stalls the spout."""

    def __init__(self, ledger: Ledger, owner: int) -> None:
        self._ledger = ledger
        self._owner = owner
        self._feed: OutcomeFeed | None = None
        self._wake: Callable[[], None] = lambda: None
        self._arrived: queue.SimpleQueue[Outcomes] = queue.SimpleQueue()
        self._stopped = threading.Event()
        # Error that ended the thread; ``take`` raises it.
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def open(self, stopped: threading.Event, wake: Callable[[], None]) -> bool:
        self._wake = wake
        feed = patiently(stopped, self._ledger.feed, self._owner)
        if feed is None:
            return False
        REFUSALS.begin()
        self._feed = feed
        self._thread = threading.Thread(target=self._run, args=[feed], name="outcomes", daemon=True)
        self._thread.start()
        return True

    def take(self) -> list[Outcomes]:
        if self._error is not None:
            raise self._error
        taken = []
        while not self._arrived.empty():  # no other thread reads this queue
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

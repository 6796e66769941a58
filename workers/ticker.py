"""Appends a run's ticks to its relay, as its driver looks after it."""

from __future__ import annotations

import logging
from datetime import timedelta

from acker import LedgerUnavailableError
from queues import Relay
from queues.relay import START, Entry
from spark_jobs.ticks import Ticks

log = logging.getLogger(__name__)

_NOW = timedelta(0)


class Ticker:
    """At most one tick a task lies in the relay: those that fall due meanwhile become one, appended when it was read.

    So ticks neither pile up behind a slow micro-batch nor come in a burst when Redis is back. One thread only.
    """

    def __init__(self, ticks: Ticks, relay: Relay) -> None:
        self._ticks, self._relay = ticks, relay
        self._owed: dict[Entry, None] = {}
        self._last: tuple[int, str, str] | None = None
        """The lane and range that hold the last tick, until they were read. One lane shows it for all: the others are read in
        the same micro-batch or in the next one, where two ticks of a task count as one."""

    def look(self, now_s: float) -> None:
        """Append what is due; while Redis does not answer that waits for a later call. Raises LedgerRefusedError."""
        self._owed |= dict.fromkeys(self._ticks.due(now_s))
        if not self._owed:
            return
        try:
            if not self._waiting():
                self._append(list(self._owed))
                self._owed.clear()
        except LedgerUnavailableError as error:
            log.debug("ticks wait: %s", error, extra={"event": "ticks_wait"})

    def _waiting(self) -> bool:
        return self._last is not None and bool(self._relay.read(*self._last))

    def _append(self, entries: list[Entry]) -> None:
        lane = entries[-1].lane
        before = self._relay.advance({lane: START}, 0, _NOW)
        self._relay.append(entries)
        # Appended from here on: should the next call fail, the range before it is empty, and nothing is waited for.
        self._last = None
        self._last = lane, before[lane], self._relay.advance(before, 0, _NOW)[lane]

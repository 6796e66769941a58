"""Sees when a micro-batch takes long, and keeps those that wait behind it from timing out.

A tuple that hangs blocks its micro-batch, and all that comes after. Its neighbours did nothing wrong: were they to time out,
each would count one failed delivery, come again, time out again, and in the end be dead-lettered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

from acker import Ledger, LedgerUnavailableError
from queues import Relay
from queues.chunk import roots_in
from queues.relay import START

log = logging.getLogger(__name__)

_NOW = timedelta(0)
_ENTRIES = 50
"""Read at once."""
_MOST_TIMEOUTS = 10
"""A tuple that hangs is ended after one timeout, or several where native code hangs. What lasts longer has no end."""


class StallWatch:
    """Watches the relay of one run; times are monotonic seconds. Best effort while Redis is away."""

    def __init__(self, relay: Relay, ledger: Ledger, lanes: int, timeout: timedelta | None, now: float) -> None:
        """``timeout`` is the messages'; without one there is nothing to do."""
        self._relay, self._ledger = relay, ledger
        self._starts = dict.fromkeys(range(lanes), START)
        self._timeout_s = timeout.total_seconds() if timeout else None
        self._oldest: Mapping[int, str] = self._starts
        self._since = self._looked_at = now
        self._resets = 0

    @property
    def given_up(self) -> bool:
        """It takes so long that those who wait do time out. More must not be sent: it could only time out again and again."""
        return self._resets >= 3 * _MOST_TIMEOUTS

    def look(self, now: float) -> None:
        """To be called often: is the oldest chunk still the same? Every third of a timeout that it is, all timeouts restart."""
        if self._timeout_s is None or now - self._looked_at < self._timeout_s / 30:
            return
        self._looked_at = now
        try:
            oldest = self._relay.advance(self._starts, 1, _NOW)
            if oldest != self._oldest or oldest == self._starts:
                self._oldest, self._since, self._resets = oldest, now, 0
            elif now - self._since >= (self._resets + 1) * self._timeout_s / 3 and not self.given_up:
                self._reset(now)
        except LedgerUnavailableError as error:
            log.debug("did not look for stalls: %s", error, extra={"event": "stall_not_seen"})

    def _reset(self, now: float) -> None:
        for lane in self._starts:
            self._reset_lane(lane)
        self._resets += 1
        if self._resets == 1 or self.given_up:
            so_far = "what waits behind it does not time out for now"
            said = "what waits behind it times out from now on; nothing more is sent" if self.given_up else so_far
            log.warning("a micro-batch has been running for %.0f s; %s", now - self._since, said, extra={"event": "stalled"})

    def _reset_lane(self, lane: int) -> None:
        position = START
        while (end := self._relay.advance({lane: position}, _ENTRIES, _NOW)[lane]) != position:
            payloads = self._relay.read(lane, position, end)
            if payloads:
                self._ledger.reset_timeout(roots_in(payloads))
            position = end

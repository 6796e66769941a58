"""One batch of spout tuples on its way into the ledger and the relay."""

from __future__ import annotations

import enum
import logging

from acker import Ledger, LedgerUnavailableError
from queues import Relay
from spark_jobs.emission import Emission

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_LOOK_SECONDS = 0.5
_WAITING_CHUNKS = 256
_WAITING_BYTES = 64 * 1024 * 1024
"""Bounds on what waits in the relay, for tuples that no ledger counts."""


class Attendance(enum.Enum):
    """Who is there to take what is sent."""

    DRIVER = "driver"
    NO_DRIVER = "no driver"
    """None, or one of another version of the topology."""
    REDIS_AWAY = "redis away"


class Sent(enum.Enum):
    """Fate of a batch."""

    LATER = "later"
    """Redis does not answer: the batch is held, try again."""
    DONE = "done"
    COLLIDED = "collided"
    """One of its root ids was taken: nothing was appended, all of it must be emitted anew."""


class Outbox:
    """Holds at most one batch until Redis took it. Registering comes first: an outcome must never find its root unknown."""

    def __init__(self, ledger: Ledger, relay: Relay, owner: int, shape: str = "") -> None:
        """``shape`` of the topology, see ``shape_of``: a driver of another one is as good as none."""
        self._ledger = ledger
        self._relay = relay
        self._owner = owner
        self._shape = shape
        self._batch: Emission | None = None
        self._retry_at = 0.0
        self._registered = False
        self._away = False
        self._attendance: Attendance | None = None
        self._stranger = ""
        self._look_at = 0.0
        self._untracked = False
        """Whether the last batch had tuples that no ledger counts."""
        self._chunk_bytes = 0.0

    def look(self, now: float) -> Attendance:
        """Return who is there to take what is sent; asks Redis twice per second at most."""
        if self._attendance is None or now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            found = Attendance.REDIS_AWAY if self._away else self._asked()
            if found is not self._attendance:
                there = found is Attendance.DRIVER
                said = "a driver is there" if there else "waiting for a driver"
                log.info("%s", said, extra={"event": "driver_seen" if there else "driver_missing"})
            self._attendance = found
        return self._attendance

    def may_fill(self, now: float) -> bool:
        """Tell whether to take more from the source: nothing is held, a driver is there, and the relay has room.

        Without a driver every tuple could only time out, and each time-out counts against its message: an hour without a
        driver would end in the dead-letter queue.
        """
        if self.look(now) is not Attendance.DRIVER or self._batch is not None:
            return False
        return not self._untracked or self._relay_has_room()

    def _relay_has_room(self) -> bool:
        """Whether what no ledger counts may be appended: its bound is what waits in the relay."""
        try:
            waiting = self._relay.length()
        except LedgerUnavailableError:
            return False
        return waiting < _WAITING_CHUNKS and waiting * self._chunk_bytes < _WAITING_BYTES

    def _asked(self) -> Attendance:
        try:
            understood = self._understood(self._relay.attendant())
        except LedgerUnavailableError:
            return Attendance.REDIS_AWAY
        return Attendance.DRIVER if understood else Attendance.NO_DRIVER

    def _understood(self, attendant: str | None) -> bool:
        """Tell whether a driver is there that reads what would be sent."""
        if attendant is None:
            return False
        run, _, shape = attendant.partition(" ")
        if not (shape and self._shape) or shape == self._shape:
            return True
        if run != self._stranger:
            self._stranger = run
            log.warning(
                "the driver runs another version of the topology: start it and the spout workers with the same one; "
                "nothing is sent until then",
                extra={"event": "other_version"},
            )
        return False

    @property
    def holds(self) -> bool:
        return self._batch is not None

    def put(self, batch: Emission, *, untracked: bool = False) -> None:
        """Take a batch over; only when none is held. ``untracked``: it has tuples that no ledger counts."""
        self._batch = batch
        self._untracked = untracked
        if untracked and batch.entries:
            largest = max(len(entry.payload) for entry in batch.entries)
            self._chunk_bytes = max(largest, 0.9 * self._chunk_bytes)

    def register_again(self) -> None:
        """The ledger lost its memory: what is held was perhaps in it."""
        self._registered = False

    def due(self, now: float) -> bool:
        """Tell whether to try to send at ``now``, in monotonic seconds."""
        return self._batch is not None and now >= self._retry_at

    def send(self, now: float) -> Sent:
        """Register and append what is held; what failed is repeated by the next call."""
        batch = self._batch
        if batch is None:
            return Sent.DONE
        collided: list[int] = []
        try:
            # Once only: after an append whose reply was lost, a root may be done with by now, and would be pending for ever.
            if batch.roots and not self._registered:
                collided = self._ledger.register(self._owner, batch.roots, batch.ack_vals)
                self._registered = not collided
            if not collided:
                self._relay.append(batch.entries)
        except LedgerUnavailableError as error:
            if not self._away:
                log.warning("%s; no messages are taken meanwhile", error, extra={"event": "redis_away"})
            self._away = True
            self._retry_at = now + _RETRY_SECONDS
            return Sent.LATER
        if self._away:
            log.info("Redis works again", extra={"event": "redis_back"})
        self._batch = None
        self._away = False
        self._registered = False
        if collided:
            self._forget([root for root in batch.roots if root not in collided])
        return Sent.COLLIDED if collided else Sent.DONE

    def _forget(self, roots: list[int]) -> None:
        try:
            self._ledger.forget(roots)
        except LedgerUnavailableError as error:
            log.debug("entries are left to expire: %s", error, extra={"event": "entries_left"})

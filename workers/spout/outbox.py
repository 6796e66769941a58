"""The outbox of a spout task: it holds a batch until the ledger and the inboxes have it."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence

from tiercel.acker.effects import on_one_server, perform_all, perform_in_turn
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Appended, Parcel, full_among, next_parcels, parcels_left
from tiercel.acker.inbox.contract import Inboxes, Sender, append_again
from tiercel.acker.ledger import Ledger
from tiercel.queues import outage
from tiercel.spark_jobs.topology.graph import Topology, inboxes_of, shape_of
from tiercel.workers.control.presence import Holder, Lease
from tiercel.workers.spout.admission import Crowd, crowd_of
from tiercel.workers.spout.collector import Emission

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_ROOM_SECONDS = 0.02
_LOOK_SECONDS = 0.5
# Time for the driver to renew its lease after an outage of Redis.
_DRIVER_DUE_SECONDS = 5.0


class Attendance(enum.Enum):
    """Readiness of the driver and Redis to take a spout worker's batches."""

    DRIVER = "driver"
    # No driver is running, or only a driver of another version of the topology.
    NO_DRIVER = "no driver"
    REDIS_AWAY = "Redis away"


class BatchFate(enum.Enum):
    """Result of sending the batch."""

    # Redis does not answer or an inbox is full, so the batch stays held; or no batch is due.
    LATER = "later"
    DONE = "done"
    # A root id was already taken, the run is over, or the ledger lost its data: all tuples must be
    # emitted again.
    REFUSED = "refused"


class Outbox:
    """Holds at most one batch until Redis has taken it. Runs on the spout's thread.

    Roots are registered before their tuples leave: an outcome must never find its root unknown.
    """

    def __init__(
        self, *, ledger: Ledger, inboxes: Inboxes, lease: Lease, owner: int, topology: Topology
    ) -> None:
        """``owner`` is the id of the spout task."""
        self._ledger = ledger
        self._inboxes = inboxes
        self._lease = lease
        self._owner = owner
        # Unique to this worker: batch numbers start over with each worker, and must not be mistaken
        # for the numbers of an earlier worker of this task. None: drawn before the next append.
        self._sender: Sender | None = None
        self._arrangement = Arrangement(topology)
        # The topology for the next batch; ``look`` changes it together with the run.
        self.topology = topology
        # The batch that Redis has not fully taken; None if another one may be ``put``.
        self.held: Emission | None = None
        # Parcels of the batch that no inbox has taken yet.
        self._parcels: Sequence[Parcel] = ()
        # Targets of the batch that had no room.
        self._full: set[int] = set()
        # Id of the run to send to.
        self._run = ""
        self._number = 0
        self._registered = self._lost = False
        self._retry_at = 0.0
        self._away = False
        # The time until which a missing driver is not logged: it may still renew its lease.
        self._driver_due_at = float("-inf")
        # The attendance when Redis was last asked, and the time from which ``look`` asks again.
        self.attendance = Attendance.NO_DRIVER
        # True while the driver's run waits for the processes of its bolt tasks.
        self.starting = False
        self.look_at = float("-inf")
        self._told_driver: bool | None = None
        self._stranger = ""

    def look(self, now: float) -> Attendance:
        """Return the attendance now; asks Redis at most twice per second."""
        if now >= self.look_at:
            self.look_at = now + _LOOK_SECONDS
            found = Attendance.REDIS_AWAY if self._away else self._asked()
            if found is Attendance.REDIS_AWAY:
                self._driver_due_at = now + _DRIVER_DUE_SECONDS
            elif found is Attendance.DRIVER or now >= self._driver_due_at:
                self._tell_driver(there=found is Attendance.DRIVER)
            self.attendance = found
        return self.attendance

    def crowd(self) -> Crowd | None:
        """Return the crowd at the bolts now; None if Redis does not answer."""
        try:
            found = self._inboxes.figures(inboxes_of(self.topology), extra=True)
        except RedisUnavailableError:
            return None  # ``look`` says so
        return crowd_of(self.topology, found)

    def put(self, batch: Emission) -> None:
        """Hold a batch; allowed only while ``held`` is None."""
        self.held = batch
        self._parcels = batch.parcels
        self._full.clear()
        self._number += 1

    def lost(self) -> None:
        """Note that the ledger lost its data: the next ``send`` refuses the held batch, because
        inboxes may have lost one part of it, and bolts may have executed another.
        """
        self._lost = self.held is not None

    def send(self, now: float) -> BatchFate:
        """Register and append the held batch if it is due; the next call retries a failed step."""
        batch = self.held
        if batch is None or now < self._retry_at:
            return BatchFate.LATER
        collided: Sequence[int] = ()
        try:
            if self._sender is None:
                self._sender = self._inboxes.draw_sender()
            if batch.roots and not (self._registered or self._lost):
                collided = self._register(batch, self._sender)
                self._registered = not collided
            fate = BatchFate.REFUSED if collided or self._lost else BatchFate.DONE
            if self._parcels and fate is BatchFate.DONE:
                fate = self._append(now, self._sender)
        except RedisUnavailableError as error:
            outage.REDIS.begins("outbox", error)
            self._away = True
            self._retry_at = now + _RETRY_SECONDS
            return BatchFate.LATER
        if self._away:
            outage.REDIS.ends("outbox")
            self._away = False
        if fate is BatchFate.REFUSED:
            forget(self._ledger, [root for root in batch.roots if root not in collided])
        if fate is not BatchFate.LATER:
            self.held = None
            self._registered = self._lost = False
        return fate

    def _register(self, batch: Emission, sender: Sender) -> Sequence[int]:
        """Register the roots, and append in the same call if all of it is on one server; return the
        roots that collide.

        If the reply to such a call was lost, its tuples may have left, and their trees may be
        complete: a root registered again would stay pending forever. So the call begins with the
        question whether the first parcel has arrived.
        """
        owner, number = self._owner, self._number
        parcels = next_parcels(self._parcels) if len(self._parcels) > 1 else self._parcels
        registering = self._ledger.registering(owner, batch.roots, batch.ack_vals)
        appends = self._inboxes.append(self._run, sender, number, parcels) if parcels else []
        lacks = [self._inboxes.lacks(sender, number, parcels[0])] if parcels else []
        together = [*lacks, *registering, *appends]
        if lacks and on_one_server(together):
            lacking, *replies = perform_in_turn(together)
        else:
            lacking, replies = True, perform_all(registering)
        if lacking and not all(replies[: len(registering)]):
            return self._ledger.register(owner, batch.roots, batch.ack_vals)
        # The calls end at the first append with another verdict.
        verdicts = replies[len(registering) :]
        done = verdicts.count(Appended.DONE)
        if Appended.FULL in verdicts:
            self._full |= full_among(parcels[: len(verdicts)], verdicts)
        if done == len(self._parcels):
            self._parcels = ()
        elif done:
            self._parcels = parcels_left(self._parcels, parcels[:done], [Appended.DONE] * done)
        return ()

    def _append(self, now: float, sender: Sender) -> BatchFate:
        """Append the parcels that no inbox has taken yet.

        If an inbox is full, its parcel and all parcels after it are appended later.
        """
        while self._parcels:
            sent = next_parcels(self._parcels) if len(self._parcels) > 1 else self._parcels
            verdicts = append_again(
                self._inboxes, self._run, sender, self._number, sent, self._full
            )
            if Appended.STALE in verdicts or Appended.DIFFERENT in verdicts:
                log.info(
                    "the run has changed: sent tuples are emitted again",
                    extra={"event": "run_changed"},
                )
                self.look_at = now
                # An inbox may have forgotten this sender.
                self._sender = None
                return BatchFate.REFUSED
            if len(sent) == len(self._parcels) and Appended.FULL not in verdicts:
                self._parcels = ()
                break
            self._parcels = parcels_left(self._parcels, sent, verdicts)
            if Appended.FULL in verdicts:
                self._full |= full_among(sent, verdicts)
                self._retry_at = now + _ROOM_SECONDS
                return BatchFate.LATER
        return BatchFate.DONE

    def _tell_driver(self, *, there: bool) -> None:
        if there is not self._told_driver:
            said = "a driver is there" if there else "waiting for a driver"
            log.info("%s", said, extra={"event": "driver_seen" if there else "driver_missing"})
        self._told_driver = there

    def _asked(self) -> Attendance:
        try:
            holder = self._lease.holder()
        except RedisUnavailableError as error:
            outage.REDIS.begins("outbox", error)
            return Attendance.REDIS_AWAY
        if self.attendance is Attendance.REDIS_AWAY:
            outage.REDIS.ends("outbox")
        self.starting = holder is not None and holder.starting
        if holder is None or not holder.run or not self._understood(holder):
            return Attendance.NO_DRIVER
        # Change both together: tuples routed for other numbers of tasks must not reach this run.
        if self.held is None:
            self._run = holder.run
            self.topology = self._arrangement.follow(holder)
        return Attendance.DRIVER

    def _understood(self, holder: Holder) -> bool:
        """Return True if the driver runs the same version of the topology as this worker."""
        if self._arrangement.understands(holder):
            return True
        if holder.driver != self._stranger:
            self._stranger = holder.driver
            log.warning(
                "the driver runs another version of the topology: start the driver and the spout "
                "workers from the same version; nothing is sent until then",
                extra={"event": "other_version"},
            )
        return False


def forget(ledger: Ledger, roots: Sequence[int]) -> None:
    """Delete the entries of roots that will have no outcome; the rest of them expires."""
    if not roots:
        return
    try:
        ledger.forget(roots)
    except RedisUnavailableError as error:
        log.debug(
            "could not delete entries, leaving them to expire: %s",
            error,
            extra={"event": "entries_left"},
        )


class Arrangement:
    """The topology that a spout worker emits for. One thread only.

    The driver's lease has the number of tasks of each bolt in its run. With these numbers, the
    worker's own topology must have the same shape as the driver's; otherwise their versions differ.
    """

    def __init__(self, topology: Topology) -> None:
        self._own = topology
        self._topology = topology
        self._shape = shape_of(topology)

    def understands(self, holder: Holder) -> bool:
        """Return True if the driver's run can read tuples of this worker."""
        return self._is_same(holder) or shape_of(self._numbered(holder)) == holder.shape

    def follow(self, holder: Holder) -> Topology:
        """Adopt the numbers of tasks of a driver that this worker understands.

        Return the topology to emit for: the same object while the numbers stay the same.
        """
        if not self._is_same(holder):
            self._topology = self._numbered(holder)
            self._shape = holder.shape
        return self._topology

    def _is_same(self, holder: Holder) -> bool:
        return holder.shape in ("", self._shape)

    def _numbered(self, holder: Holder) -> Topology:
        return self._own.with_parallelism(holder.parallelism)

"""Presence: which process has which seat in a topology, with a note about itself.

The driver has a lease (``Lease``, renewed by ``Keeper``), each spout task a seat (``SpoutSeats``).

A process takes its seat, renews it periodically, and leaves. A seat that is not renewed lapses:

    seat         holder                     renewed                             lapses after
    the driver   a driver (``Keeper``)      every 0.75 s                        3 s
    spout task   a spout worker             each second (``Orders``)            10 s
    bolt task    an attempt at the task     each second, in the task's inbox    10 s

The bolt task's is not a seat of this contract but a field of the inbox (``Inboxes.beat``), where
attempts and runs are fenced: one call renews it and returns whether the process may go on.

``RedisPresences`` has the contract of seats; its twin in memory is among the tests.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from tiercel.acker.errors import AckerError, RedisUnavailableError
from tiercel.acker.layout import spout_seat
from tiercel.spark_jobs.whereabouts import Whereabouts, of_this_process, unpacked
from tiercel.workers.control.contract import Attendant, Seat, Unreadable, pack, unpack
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.control.registry import Registry

if TYPE_CHECKING:  # as in registry.py
    from tiercel.acker.inbox.contract import InboxFigures

log = logging.getLogger(__name__)
# A bolt task whose process is silent for longer counts as without a process. Spark restarts a
# process within two seconds.
UNATTENDED_S = 10.0


def attended(inbox: InboxFigures) -> bool:
    """Return True if a process runs the bolt task with this inbox.

    The driver uses the same rule to begin a new run when a task stays unattended.
    """
    return inbox.adopted and inbox.seen_s is not None and inbox.seen_s <= UNATTENDED_S


# A driver in reserve takes over when the seat has lapsed; so does a driver restarted after a kill,
# which may have to wait for its predecessor's seat.
DRIVER = Seat("driver", timedelta(seconds=3))
_NOTHING = "-"
_STARTING = "starting"
_RENEW_S = DRIVER.lasts.total_seconds() / 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorReport:
    """The numbers of executors that a driver wants and has, and the reason."""

    wanted: int
    present: int
    # Executors that Spark has not given for a long time.
    refused: int = 0
    why: str = ""

    def packed(self) -> str:
        """Encode as one word."""
        return f"{self.wanted},{self.present},{self.refused},{quote(self.why, safe='')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The driver that holds the lease, with its note about itself."""

    # Name of the driver process, drawn at its start. Each text here is one word.
    driver: str
    # The run that spout workers send to; empty while none is ready.
    run: str = ""
    # True until each bolt task of this run has had a process.
    starting: bool = False
    # Shape of the topology in this run (``shape_of``): spout workers of another shape send nothing.
    shape: str = ""
    # Number of tasks of each bolt in this run.
    parallelism: Mapping[str, int] = field(default_factory=dict)
    # None: not reported.
    whereabouts: Whereabouts | None = None
    # Why no executor can run bolts; empty if one can, or if it is not known yet.
    trouble: str = ""
    # None: the number of executors is the operator's.
    executors: ExecutorReport | None = None


class Lease:
    """The lease of one topology. Calls are as ``RedisPresences`` says.

    A lease is lost if it is not renewed in time, or if Redis loses its memory. A driver without it
    does no harm: inboxes, ledger and states belong to the run with the highest number.
    """

    def __init__(self, presences: RedisPresences) -> None:
        self._presences = presences

    def take(self, holder: Holder) -> bool:
        """Take the lease, or renew it; False if another driver holds it."""
        return self._presences.take(DRIVER, Attendant(holder.driver, _note(holder)))

    def draw(self, driver: str) -> int | None:
        """Draw the number of a new run; None if the driver does not hold the lease.

        A run that a driver began after it lost the lease has a lower number than its successor's,
        and is refused wherever runs have numbers. A repeat draws another number.
        """
        return self._presences.draw_run(DRIVER, driver)

    def leave(self, driver: str) -> None:
        """Give up the lease; leave another driver's lease alone."""
        self._presences.leave(DRIVER, driver)

    def holder(self) -> Holder | None:
        """Return the driver that holds the lease now; None if there is none."""
        [found] = self._presences.look([DRIVER])
        return None if found is None else _holder(found)

    def newest_run(self) -> datetime | None:
        """Return the time when the newest run began; None if there was none."""
        number = self._presences.newest_run()
        return None if number is None else datetime.fromtimestamp(number / 1e6, UTC)

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._presences.close()


def _note(holder: Holder) -> str:
    place = holder.whereabouts.packed() if holder.whereabouts else ""
    trouble = quote(holder.trouble, safe="")
    executors = holder.executors.packed() if holder.executors else ""
    starting = _STARTING if holder.starting else ""
    numbers = pack(holder.parallelism)
    words = (holder.run, holder.shape, numbers, place, trouble, executors, starting)
    return " ".join(word or _NOTHING for word in words)


def _holder(found: Attendant) -> Holder:
    # An older version writes fewer words, and a newer one may write more.
    words = [*found.note.split(), *[_NOTHING] * 7][:7]
    run, shape, numbers, place, trouble, executors, starting = (
        "" if word == _NOTHING else word for word in words
    )
    return Holder(
        driver=found.name,
        run=run,
        starting=starting == _STARTING,
        shape=shape,
        parallelism=unpack(numbers),
        whereabouts=unpacked(place),
        trouble=unquote(trouble),
        executors=_executors(executors),
    )


def _executors(word: str) -> ExecutorReport | None:
    """Decode the output of ``packed``; None for any other word."""
    wanted, present, refused, why = [*word.split(","), "", "", "", ""][:4]
    with suppress(ValueError):
        return ExecutorReport(
            wanted=int(wanted), present=int(present), refused=int(refused), why=unquote(why)
        )
    return None


class Keeper:
    """One driver's hold on the lease. Thread-safe.

    While Redis is unavailable the lease counts as held: no other driver can take it either, and
    writes of this driver's run are refused as soon as another driver's run has begun.
    """

    def __init__(self, lease: Lease, code: str = "") -> None:
        """``code`` is ``Topology.code``."""
        self._lease = lease
        # Held by every call that takes or leaves the lease: a renewal must not revive a run that
        # has ended, or a lease that was given up.
        self._lock = threading.Lock()
        # A holder without a run.
        self._idle = Holder(driver=secrets.token_hex(8), whereabouts=of_this_process(code))
        self._me = self._idle
        self._held = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    @property
    def held(self) -> bool:
        """True while no other driver is known to have the lease."""
        return self._held

    def take(self) -> bool:
        """Try to take the lease, and renew it from then on. Raises RedisUnavailableError."""
        with self._lock:
            self._take()
            if self._held and not self._thread.is_alive():
                self._thread.start()
            return self._held

    def draw(self) -> int | None:
        """Draw the number of a new run; None if the lease is lost.

        Raises RedisUnavailableError.
        """
        with self._lock:
            # The lease may have lapsed while Redis was unavailable or this process stood still.
            self._take()
            drawn = self._lease.draw(self._me.driver) if self._held else None
            if drawn is None:
                self._drop()
            return drawn

    def attend(self, run: str, shape: str, parallelism: Mapping[str, int]) -> None:
        """Make spout workers send to this run from now on: no message times out before ``started``.

        If Redis does not answer, the next renewal does it.
        """
        self._say(
            replace(
                self._idle,
                run=run,
                starting=True,
                shape=shape,
                parallelism=parallelism,
            )
        )

    def replaces(self) -> None:
        """Note that Spark replaces an executor of the run: no message times out before ``started``;
        otherwise as ``attend``.
        """
        if self._me.run and not self._me.starting:
            self._say(replace(self._me, starting=True))

    def started(self) -> None:
        """Note that each bolt task of the run has a process; otherwise as ``attend``."""
        if self._me.starting:
            self._say(replace(self._me, starting=False))

    def attend_none(self, trouble: str = "") -> None:
        """Make spout workers send nothing from now on; otherwise as ``attend``.

        Monitors show the reason, ``trouble``.
        """
        self._say(replace(self._idle, trouble=trouble))

    def tell(self, executors: ExecutorReport) -> bool:
        """Report the executors with the next renewal; False if another driver has the lease."""
        with self._lock:
            if self._held:
                self._idle = replace(self._idle, executors=executors)
                self._me = replace(self._me, executors=executors)
            return self._held

    def close(self) -> None:
        """Give up the lease. Idempotent."""
        with self._lock, suppress(RedisUnavailableError):
            self._closed.set()
            self._drop()
            self._lease.leave(self._me.driver)

    def _say(self, me: Holder) -> None:
        with self._lock, suppress(RedisUnavailableError):
            if self._held:
                self._me = me
                self._take()

    def _take(self) -> None:
        if self._closed.is_set() or not self._lease.take(self._me):
            self._drop()
        else:
            self._held = True

    def _drop(self) -> None:
        self._held = False
        self._me = self._idle

    def _renew(self) -> None:
        while not self._closed.wait(_RENEW_S):
            with self._lock:
                if not self._held:
                    continue
                try:
                    self._take()
                except AckerError as error:
                    # The driver's own thread raises the errors that need an operator.
                    log.debug(
                        "could not renew the lease, will retry: %s",
                        error,
                        extra={"event": "redis_away"},
                    )


LASTS = timedelta(seconds=10)
_STRANGE = (ValueError, TypeError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """A spout task's report about itself."""

    active: bool
    # Number of tracked tuples in flight.
    pending: int
    # Age of the oldest pending tuple; 0 if there is none.
    oldest_s: float = 0.0
    # Number of failed messages that wait in the spout for their back-off.
    in_back_off: int = 0
    # Location of the task's worker, added by ``SpoutSeats``; None: not reported.
    whereabouts: Whereabouts | None = None


NEW = Presence(active=False, pending=0)


class SpoutSeats:
    """The spout seats of one topology, with the calls of ``RedisPresences``; each worker draws its
    name.

    While Redis is unavailable or has lost its memory, two workers may for a moment believe that
    they have the same task. The worker that opened the outcome feed later gets all its outcomes.
    The earlier worker may miss outcomes that the later one has read and deleted: these messages
    time out and are redelivered. No message is acked wrongly, because roots are unique.
    """

    def __init__(self, presences: RedisPresences, whereabouts: Whereabouts | None = None) -> None:
        """``whereabouts`` is the location of the worker that takes seats."""
        self._presences = presences
        self._place = [whereabouts.packed()] if whereabouts else []
        self._unreadable = Unreadable(
            "run all parts of the topology on the same version of tiercel"
        )

    def take(self, worker: str, task_ids: Iterable[int]) -> int | None:
        """Take the first free task and return it; None if all have workers.

        One round trip per task.
        """
        return next((task for task in task_ids if self.report(worker, task, NEW)), None)

    def report(
        self, worker: str, task_id: int, presence: Presence, *, by_force: bool = False
    ) -> bool:
        """Report a task, which renews its seat; False if another worker has it.

        Call it every second. ``by_force``: an operator gave this worker the task.
        """
        oldest_s = round(presence.oldest_s, 3)
        figures = [presence.active, presence.pending, oldest_s, presence.in_back_off]
        said = json.dumps([*figures, *self._place])
        return self._presences.take(_seat(task_id), Attendant(worker, said), by_force=by_force)

    def leave(self, worker: str, task_id: int) -> None:
        """Give up the task. Idempotent; leaves another worker's seat alone."""
        self._presences.leave(_seat(task_id), worker)

    def present(self, task_ids: range) -> dict[int, Presence]:
        """Return the report of each task that has a worker."""
        there = {}
        seats = [_seat(task_id) for task_id in task_ids]
        for task_id, found in zip(task_ids, self._presences.look(seats), strict=True):
            if found is None:
                continue
            try:
                there[task_id] = _presence(found.note)
            except _STRANGE as error:
                self._unreadable.pass_over(
                    f"the presence of spout task {task_id}", found.note.encode(), error
                )
        return there

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._presences.close()


def _seat(task_id: int) -> Seat:
    return Seat(spout_seat(task_id), LASTS)


def _presence(said: str) -> Presence:
    """Parse a report. Raises one of ``_STRANGE`` unless this version's ``report`` wrote it."""
    active, pending, oldest_s, in_back_off, *more = json.loads(said)
    counts = isinstance(pending, int) and isinstance(in_back_off, int)
    if not isinstance(active, bool) or not counts or not math.isfinite(oldest_s):
        raise TypeError("not the report of a spout task")
    return Presence(
        active=active,
        pending=pending,
        oldest_s=oldest_s,
        in_back_off=in_back_off,
        whereabouts=unpacked(str(more[0])) if more else None,
    )


def running_readers(redis_url: str, queue: str) -> list[str]:
    """Return the topologies that read this queue and have a spout worker now.

    Raises RedisUnavailableError, RedisRefusedError.
    """
    with closing(Registry(redis_url)) as registry:
        notes = registry.topologies()
    found = []
    for name, note in notes.items():
        if queue in note.graph.queues:
            with closing(SpoutSeats(RedisPresences(redis_url, name))) as seats:
                found += [name] if seats.present(range(1, note.spout_tasks + 1)) else []
    return found

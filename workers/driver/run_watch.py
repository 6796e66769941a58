"""Watches one run until there is a reason to end it: the contract of Spark for the driver, the
watch itself, and its judgements.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.contract import Inboxes, InboxFigures
from tiercel.queues import outage
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.state.store import AGED_EVERY_S
from tiercel.spark_jobs.topology.graph import Topology, inboxes_of
from tiercel.workers.control.contract import NO_PAUSES, Rebalance, State
from tiercel.workers.control.presence import UNATTENDED_S, Keeper, Lease
from tiercel.workers.control.redis_control import RedisControl
from tiercel.workers.lifecycle import Heartbeat

log = logging.getLogger(__name__)
_LOOK_S = 0.2
_FIGURES_S = 1.0
# Time for tuples in flight when a healthy run ends. Spout workers check twice per second whether
# to send, and one look may miss a tuple between two inboxes, so several looks in a row must find
# nothing.
_DRAIN_S = 10.0
_QUIET_LOOKS = 4
_FREE_LOOK_S = 5.0
# Looks in a row: an executor that comes and goes is not worth a new run.
_SURE_LOOKS = 3
# Time within which the Spark tasks of a run start, and each bolt task is seen.
START_S = 60.0
# Spark replaces a killed executor within three seconds, or fifteen on a busy machine. Meanwhile
# only the tasks of that executor stand still, and no message times out; a new run would restart all
# tasks.
_REPLACED_S = 20.0
# Without a word for this long, a task may be waiting for Spark to replace its executor.
_LATE_S = 2.0
# Looks in a row. After a stall of Redis or a jump of its clock, every process seems long gone until
# it reports again, a second or two later.
SURE_LOOKS = 4
# A run that lasted this long with all its processes is no failure of the topology.
_HEALTHY_S = 30.0
_LONGEST_PAUSE_S = 10.0
_LONGEST_UNFIT_PAUSE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Servers and settings that the runs of one topology share."""

    topology: Topology
    lease: Lease
    control: RedisControl
    inboxes: Inboxes
    # Makes a run of a number, a number of slots, and a topology with its numbers of tasks.
    make: Callable[[int, int, Topology], Run]
    # Takes inboxes and ledger over for the run, and returns the number of released messages. May
    # be repeated. Raises StaleAttemptError if a later run has begun.
    enter: Callable[[Run], int]
    # Ages the memory of once bolts; see ``StateStore.age``.
    age: Callable[[], None] = lambda: None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    # A run's own tasks are on this number of executors, and the others may leave. 0: on all.
    least: int = 0
    # Takes over extra tasks of a run that have no process, and returns the number of released
    # messages. May be repeated. Raises StaleAttemptError if a later run has begun.
    end_extra: Callable[[Run, Sequence[int]], int] = lambda _run, _tasks: 0


class Ended(enum.Enum):
    """Reason why a run ended."""

    STOPPED = "stopped"
    # The Spark job ended by itself.
    FAILED = "failed"
    # Another driver or run has the topology, or Redis lost its memory.
    LOST = "lost"
    # An operator ordered a new run on Spark's current slots.
    REBALANCED = "rebalanced"
    # Bolt tasks had no process: slots were too few, or executors gone.
    UNATTENDED = "unattended"
    # Executors could not start Python.
    UNFIT = "unfit"


class RunWatch:
    """Watches the runs of one driver. For one thread."""

    def __init__(
        self,
        context: RunContext,
        keeper: Keeper,
        stop: threading.Event,
        is_over: Callable[[], bool],
    ) -> None:
        """``stop`` is set by a signal; ``is_over`` also asks Redis for an operator's kill, and
        raises RedisUnavailableError.
        """
        self._context = context
        self._name = context.topology.name
        self._keeper = keeper
        self._stop = stop
        self._is_over = is_over
        # The paused bolts, for a Redis that is emptied.
        self._pauses = NO_PAUSES
        self._age_at = 0.0

    def until_end(
        self,
        run: Run,
        tasks: LongTasks,
        order: Rebalance,
        may_widen: Callable[[float], bool],
        is_due: Callable[[], bool] = lambda: False,
    ) -> Ended:
        """Watch a run that obeys ``order`` until it is over; return why it ended.

        ``may_widen(now)``: Spark has slots that only a new run can use. Asked also if ``is_due``.
        """
        look_at = began = time.monotonic()
        absences = Absences()
        while not self._stop.wait(_LOOK_S):
            self._context.heartbeat.beat()
            now = time.monotonic()
            ended = self._ended_by_itself(tasks)
            if ended is not None:
                return ended
            if now < look_at and not is_due():
                continue
            look_at = now + _FIGURES_S
            try:
                ended = self._looked(run, tasks, order, now - began, absences)
            except RedisUnavailableError as error:
                # No further call: each may wait for seconds, and the heartbeat with it.
                outage.REDIS.begins(self, error)
                absences.looked(())
                continue
            outage.REDIS.ends(self)
            if ended is not None:
                return ended
            self._age(now)
            if may_widen(now):
                self._drain(run, tasks)
                return Ended.REBALANCED
        return Ended.STOPPED

    def keep_pauses(self) -> None:
        """Read which bolts are paused, and tell a Redis that was emptied.

        Raises RedisUnavailableError.
        """
        self._pauses = self._context.control.pauses(self._pauses)

    def _age(self, now: float) -> None:
        """Age the memory of once bolts from time to time, except while spouts are deactivated: then
        no message can be redelivered.
        """
        if now < self._age_at:
            return
        self._age_at = now + AGED_EVERY_S
        with suppress(RedisUnavailableError):
            if self._context.control.state() in (None, State.ACTIVE):
                self._context.age()

    def _ended_by_itself(self, tasks: LongTasks) -> Ended | None:
        if not tasks.active and tasks.fault is not None:
            return Ended.FAILED
        # Tasks end without a fault when another run has taken their inboxes.
        if not self._keeper.held or not tasks.active:
            log.error(
                "another driver has taken over %s, or Redis lost its data",
                self._name,
                extra={"event": "run_lost"},
            )
            return Ended.LOST
        return None

    def _drain(self, run: Run, tasks: LongTasks) -> None:
        """Stop spout workers from sending, and wait for tuples in flight, so that they are not
        executed again; not for tuples of paused bolts, which no task may execute.
        """
        self._keeper.attend_none()
        deadline = time.monotonic() + _DRAIN_S
        quiet = 0
        topology, paused = run.topology, self._pauses.since_ms
        working = [
            each
            for each in (*inboxes_of(topology), *(task for host in tasks.further for task in host))
            if topology.component_of(each) not in paused
        ]
        while (
            quiet < _QUIET_LOOKS
            and tasks.active
            and self._keeper.held
            and time.monotonic() < deadline
        ):
            if self._stop.wait(_LOOK_S):
                return
            self._context.heartbeat.beat()
            with suppress(RedisUnavailableError):
                figures = self._context.inboxes.figures(working)
                quiet = 0 if any(one.tuples for one in figures.values()) else quiet + 1

    def _is_rebalanced(self, obeyed: Rebalance) -> bool:
        if self._context.control.rebalanced(obeyed).number == obeyed.number:
            return False
        log.info("%s is rebalanced", self._name, extra={"event": "rebalanced"})
        return True

    def _looked(
        self, run: Run, tasks: LongTasks, order: Rebalance, age_s: float, absences: Absences
    ) -> Ended | None:
        """Judge by orders, executors and inboxes whether the run is over; return why, or None.

        Raises RedisUnavailableError.
        """
        if self._is_over():
            return Ended.STOPPED
        self.keep_pauses()
        if self._is_rebalanced(order):
            self._drain(run, tasks)
            return Ended.REBALANCED
        # Only here, once per second: it takes ten calls to the JVM.
        if tasks.unfit:
            return Ended.UNFIT
        found = self._context.inboxes.figures(inboxes_of(run.topology))
        if not all(one.adopted for one in found.values()):
            log.error("Redis lost its data", extra={"event": "run_lost"})
            return Ended.LOST
        figures = {task: found[task] for host in run.hosts for task in host}
        late = missing_tasks(figures, _LATE_S, age_s)
        if absences.waits_again(bool(late and tasks.waiting)):
            absences.waited_at_s = age_s
            self._keeper.replaces()
        # Once an executor has come, Python starts on it.
        is_replaced = age_s - absences.waited_at_s <= UNATTENDED_S
        # Otherwise a late task is just busy.
        if not (late and is_replaced) and all(one.seen_s is not None for one in figures.values()):
            self._keeper.started()
        patience_s = _REPLACED_S if is_replaced else UNATTENDED_S
        missing = absences.looked(missing_tasks(figures, patience_s, age_s))
        if missing:
            named = ", ".join(str(task) for task in missing[:10])
            log.error(
                "no process runs the bolt tasks %s", named, extra={"event": "tasks_unattended"}
            )
            return Ended.UNATTENDED
        return None


class Width:
    """Remembers how many hosts the runs of one driver had, and notices when a run could have more
    again.
    """

    def __init__(self) -> None:
        self._most = 0
        # True if an earlier run had more hosts: a new run begins when their slots are back.
        self.lacks = False
        self._looks = 0
        self._look_at = float("-inf")

    def began(self, hosts: int, *, of: int, unfit: int = 0) -> None:
        """Note that a run of ``of`` bolt tasks began on ``hosts`` hosts.

        ``unfit`` counts the hosts that would be added if all executors could start Python.
        """
        self._most = max(self._most, hosts + unfit)
        self.lacks = hosts < min(of, self._most)
        self._looks = 0

    def may_return(self, hosts: SparkUnit, now: float) -> bool:
        """Return True once several looks found a slot free again that an earlier run had."""
        if not self.lacks or now < self._look_at:
            return False
        self._look_at = now + _FREE_LOOK_S
        self._looks = self._looks + 1 if hosts.free > 0 else 0
        if self._looks < _SURE_LOOKS:
            return False
        log.info(
            "Spark has slots again that were lost: planning anew", extra={"event": "slots_back"}
        )
        return True


def missing_tasks(
    figures: Mapping[int, InboxFigures], lost_s: float, age_s: float
) -> tuple[int, ...]:
    """Return the bolt tasks of a run that should have a process by now: tasks not seen for
    ``lost_s``, and tasks that were never seen if ``age_s``, the age of the run, is long.
    """
    seen = {task: one.seen_s for task, one in figures.items()}
    lost = (task for task, seen_s in seen.items() if seen_s is not None and seen_s > lost_s)
    never = (task for task, seen_s in seen.items() if seen_s is None and age_s > START_S)
    return (*lost, *never)


class Absences:
    """Counts how many looks in a row found each bolt task without a process."""

    def __init__(self) -> None:
        # Age of the run when Spark was last waiting for an executor.
        self.waited_at_s = float("-inf")
        self._waited = False
        self._looks: Counter[int] = Counter()

    def waits_again(self, waits: bool) -> bool:
        """Note whether late tasks have no slot; True if this and the last look found that.

        Between the crash of a task and its next attempt on the same executor it has none for a
        moment.
        """
        before, self._waited = self._waited, waits
        return before and waits

    def looked(self, missing: Sequence[int]) -> tuple[int, ...]:
        """Note the tasks that this look found without a process; return the tasks that several
        looks in a row have found.
        """
        self._looks = Counter({task: self._looks[task] + 1 for task in missing})
        return tuple(task for task in missing if self._looks[task] >= SURE_LOOKS)


def healthy(ended: Ended, lasted_s: float) -> bool:
    """Return True if the run was healthy, which resets the pause between runs."""
    return ended is Ended.REBALANCED or (ended is not Ended.UNATTENDED and lasted_s > _HEALTHY_S)


def pause_s(failures: int) -> float:
    """Return the pause before the next run, after ``failures`` unhealthy runs in a row.

    >>> [pause_s(failures) for failures in (0, 1, 2, 3, 9)]
    [0.25, 0.5, 1.0, 2.0, 10.0]
    """
    return min(_LONGEST_PAUSE_S, _doubled(failures))


def unfit_pause_s(attempts: int) -> float:
    """Return the pause before trying unfit executors again.

    >>> [unfit_pause_s(attempts) for attempts in (1, 2, 3, 9)]
    [2.0, 4.0, 8.0, 30.0]
    """
    return min(_LONGEST_UNFIT_PAUSE_S, 4 * _doubled(attempts))


def _doubled(failures: int) -> float:
    doubled: float = 0.25 * 2 ** min(failures, 10)
    return doubled

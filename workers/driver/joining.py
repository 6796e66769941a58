"""Executors that come and go during a run: extra tasks of shuffled bolts for new ones, the
end of extra tasks whose executor is gone, and the order to tasks whose executor is asked to leave.
See docs/decisions/who-joins-helps.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ids import EXTRA
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.queues.nouns import counted
from tiercel.spark_jobs.spark.executors import Executor, Readiness
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.topology.bolt_settings import extra_hosts
from tiercel.spark_jobs.topology.graph import bolt_tasks, inboxes_of
from tiercel.workers.control.presence import UNATTENDED_S
from tiercel.workers.driver.run_watch import Absences, RunContext, missing_tasks, unfit_pause_s
from tiercel.workers.driver.scaling import Present

log = logging.getLogger(__name__)

# Executors that register so soon after a run with one Spark task per bolt task began belong to the
# executors that it began with.
_FIRST_S = 5.0
# A process reports once per second. If Spark has no slot for silent extra tasks, it is gone.
_SILENT_S = 1.5
# Extra tasks have numbers of their own for the whole run, of 32 bits with the task. A number is
# used once: a deleted inbox forgets its attempts, so an older process would not be fenced off.
_MOST_NUMBERS = 4_000


class Joining:
    """Keeps the extra tasks of one run on the executors that come and go. For one thread."""

    # True if executors have joined that only a new run can use.
    is_used_up = False

    def __init__(  # noqa: PLR0913 - the run, and what it runs on
        self,
        context: RunContext,
        spark: SparkUnit,
        run: Run,
        tasks: LongTasks,
        ready: Readiness,
        *,
        joins: bool = True,
    ) -> None:
        """``ready`` are the slots that the run began with. No executor gets extra tasks unless
        ``joins``.
        """
        self._context = context
        self._spark = spark
        self._run = run
        self._tasks = tasks
        self._per_slot = (len(run.hosts), max(1, ready.slots))
        self._is_whole = not context.least and len(run.hosts) == len(bolt_tasks(run.topology))
        self._joins = joins and bool(extra_hosts(run.topology, run.hosts, 1, 1))
        self._began = time.monotonic()
        self._numbers = 0
        self._began_at: dict[tuple[int, ...], float] = {}
        self._absences = Absences()
        self._own_slots = ready.slots + ready.unfit
        # The executors that Spark has, and the names of executors that stay.
        self._executors: Sequence[Executor] = ()
        self._staying = ""
        # Executors whose tasks were asked to leave.
        self._asked: set[str] = set()
        # Further hosts that had no process at the last look, and no slot.
        self._nowhere: set[tuple[int, ...]] = set()
        # Hosts that have ended, whose messages must be released.
        self._ending: list[tuple[int, ...]] = []
        self._asking: threading.Thread | None = None
        self._found: Readiness | None = None
        self._unfit = 0
        self._ask_at = 0.0

    def look(self, now: float) -> None:
        """Start extra tasks on executors that have joined, end extra tasks without a process, and
        have the tasks of executors that are asked to leave finish and end.
        """
        if not self._spark.grows:
            return
        # The next look tries again, or the watch ends the run.
        with suppress(RedisUnavailableError, StaleAttemptError):
            self._see()
            self._ask_to_leave()
            for host in self._tasks.over:
                self._tasks.leave(host)
                self._ending.append(host)
            self._release()
            self._end_the_gone(now)
            if self.is_due():
                self._use_answer()
            elif self._joins and self._asking is None:
                self._ask(now)

    def is_due(self) -> bool:
        """Return True if executors have answered since the last look."""
        return self._asking is not None and not self._asking.is_alive()

    def close(self) -> None:
        """Wait for the answers of executors, which may take seconds."""
        if self._asking is not None:
            self._asking.join()

    def present(self) -> list[Present]:
        """Return all live executors, and their parts in the run."""
        places = self._places() or {}
        figures = self._context.inboxes.figures([task for host in places for task in host])
        found = []
        for one in self._executors:
            tasks = [task for host, id_ in places.items() if id_ == one.id for task in host]
            works = [figures[task].tuples or figures[task].doing_s is not None for task in tasks]
            found.append(
                Present(
                    id=one.id,
                    own=sum(task < EXTRA for task in tasks),
                    extra=tuple(task for task in tasks if task > EXTRA),
                    idle=not any(works),
                    retiring=one.leaving,
                )
            )
        return found

    def retire(self, executor: str) -> bool:
        """Have an executor finish its tuples and take nothing more. May be repeated.

        False if it has tasks of the run's own, which only a new run moves.
        """
        places = self._places()
        if places is None:
            return False
        tasks = [task for host, id_ in places.items() if id_ == executor for task in host]
        if any(task < EXTRA for task in tasks):
            return False
        self._spark.send_away(executor)
        return True

    # -- the executors of Spark ------------------------------------------------------------------

    def _see(self) -> None:
        """Note which executors Spark has, if they have changed."""
        with suppress(Exception):  # Spark ends, which the watch notices
            staying = self._spark.staying
            if staying == self._staying and not any(one.leaving for one in self._executors):
                return
            before = {one.id for one in self._executors if not one.leaving}
            self._executors = self._spark.executors()
            # Spark's list may lack an executor for a moment: then the next look reads it again.
            listed = {one.id for one in self._executors}
            self._staying = staying if set(filter(None, staying.split(","))) <= listed else ""
            self._miss(before - listed)

    def _miss(self, gone: Iterable[str]) -> None:
        for one in sorted(gone):
            why = self._spark.end_of(one) or "Spark gives no reason"
            # An idle executor that is asked to leave may be gone before a look sees it leave.
            if "decommission" not in why.lower():
                log.warning(
                    "executor %s is gone: %s; Spark starts its bolt tasks where it has a slot",
                    one, why,
                    extra={"event": "executor_lost"},
                )  # fmt: skip

    @property
    def _slots(self) -> int:
        return sum(one.slots for one in self._executors if not one.leaving)

    def _places(self) -> Mapping[tuple[int, ...], str] | None:
        """Return the executor of each host that runs; None if Spark ends."""
        with suppress(Exception):
            return self._tasks.executors()
        return None

    def _ask_to_leave(self) -> None:
        """Ask the tasks of executors that leave to finish and end, also tasks that just began."""
        leaving = {one.id for one in self._executors if one.leaving}
        if not leaving:
            return
        places = self._places() or {}
        tasks = [task for host, id_ in places.items() if id_ in leaving for task in host]
        if not tasks:
            return
        self._context.inboxes.leave(self._run.id, tasks)
        new = (leaving - self._asked) & set(places.values())
        self._asked |= new
        for one in sorted(new):
            log.info(
                "executor %s leaves: its tasks finish their current tuples, and others execute the "
                "rest", one,
                extra={"event": "executor_leaving"},
            )  # fmt: skip

    # -- executors that joined -------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        """Ask whether Python starts on slots that have joined, in another thread."""
        if self._is_whole and now - self._began < _FIRST_S:
            self._own_slots = max(self._own_slots, self._slots)
        wanted = self._lacking()
        if wanted <= 0 or now < self._ask_at:
            return
        if self._numbers >= _MOST_NUMBERS:
            self._use_up()
            return
        with suppress(Exception):  # Spark ends
            wanted = min(wanted, self._spark.free)
        if wanted > 0:
            self._asking = threading.Thread(
                target=self._answer, args=[wanted], name="joining", daemon=True
            )
            self._asking.start()

    def _use_up(self) -> None:
        if self.is_used_up:
            return
        self.is_used_up = True
        log.info(
            "%d times an executor has joined run %s, the most in one run: planning anew",
            self._numbers, self._run.id,
            extra={"event": "joins_used_up"},
        )  # fmt: skip

    def _lacking(self) -> int:
        """Return the number of further hosts that the executors have slots for."""
        hosts, slots = self._per_slot
        wanted = max(0, self._slots - self._own_slots) * hosts // slots
        return wanted - len(self._tasks.further)

    def _answer(self, wanted: int) -> None:
        with suppress(Exception):  # Spark ends, which the watch notices
            self._found = self._spark.ready(wanted)

    def _use_answer(self) -> None:
        self._asking = None
        found = self._found or Readiness(slots=0)
        self._found = None
        if found.trouble:
            self._unfit += 1
            self._ask_at = time.monotonic() + unfit_pause_s(self._unfit)
            log.error(
                "%s; the other executors work", found.trouble, extra={"event": "executor_unfit"}
            )
        elif found.slots:
            self._unfit = 0
        self._begin(min(found.slots, self._lacking()))

    def _begin(self, count: int) -> None:
        """Begin this many further hosts."""
        run = self._run
        count = min(count, _MOST_NUMBERS - self._numbers)
        hosts = extra_hosts(run.topology, run.hosts, self._numbers + 1, count)
        if not hosts:
            return
        self._adopt(hosts)
        self._numbers += count
        for host in hosts:
            self._began_at[host] = time.monotonic()
            self._tasks.join(host)
        log.info(
            "executors have joined run %s of %s: %s in %s more", run.id, run.topology.name,
            counted(sum(map(len, hosts)), "bolt task"), counted(len(hosts), "Spark task"),
            extra={"event": "executor_joined"},
        )  # fmt: skip

    def _adopt(self, more: Sequence[tuple[int, ...]] = ()) -> None:
        """Give the run the inboxes of ``more`` hosts, and delete the inboxes of ended ones."""
        hosts = [*self._tasks.further, *self._ending, *more]
        extra = [task for host in hosts for task in host]
        self._context.inboxes.adopt(self._run.id, [*inboxes_of(self._run.topology), *extra])

    # -- executors that are gone -----------------------------------------------------------------

    def _end_the_gone(self, now: float) -> None:
        """End the further hosts that have had no process for long, or for which Spark has no slot
        since their executor is gone; release their messages.
        """
        further = self._tasks.further
        if not further:
            return
        figures = self._context.inboxes.figures([task for host in further for task in host])
        missing: list[int] = []
        silent: list[tuple[int, ...]] = []
        for host in further:
            found = {task: figures[task] for task in host}
            missing += missing_tasks(found, UNATTENDED_S, now - self._began_at[host])
            if missing_tasks(found, _SILENT_S, inf):
                silent.append(host)
        gone = set(self._absences.looked(missing))
        unplaced = self._unplaced(silent)
        for host in further:
            if gone.intersection(host) or host in unplaced:
                self._end(host)

    def _unplaced(self, silent: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return the silent hosts that Spark has run nowhere for two looks."""
        before = self._nowhere
        places = self._places() if silent else None
        self._nowhere = set() if places is None else {one for one in silent if one not in places}
        return self._nowhere & before

    def _end(self, host: tuple[int, ...]) -> None:
        self._tasks.leave(host)
        self._ending.append(host)
        log.warning(
            "the executor of the extra tasks %s is gone", ", ".join(map(str, host[:10])),
            extra={"event": "executor_left"},
        )  # fmt: skip
        self._release()

    def _release(self) -> None:
        """Release the messages that ended hosts have left, and delete their inboxes."""
        while self._ending:
            released = self._context.end_extra(self._run, self._ending[0])
            self._ending.pop(0)
            self._adopt()
            if released:
                log.info(
                    "released %s that extra tasks had taken", counted(released, "message"),
                    extra={"event": "messages_released"},
                )  # fmt: skip

"""Executors that join during a run: extra tasks of shuffled bolts for them, and the end of extra
tasks whose executor is gone. See docs/decisions/who-joins-helps.md.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.queues.nouns import counted
from tiercel.spark_jobs.spark.executors import Readiness
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.topology.bolt_settings import extra_hosts
from tiercel.spark_jobs.topology.graph import bolt_tasks, inboxes_of
from tiercel.workers.control.presence import UNATTENDED_S
from tiercel.workers.driver.run_watch import Absences, RunContext, Staffing, unfit_pause_s

log = logging.getLogger(__name__)

# Executors that register so soon after a run with one Spark task per bolt task began belong to the
# executors that it began with.
_FIRST_S = 5.0
# Extra tasks have numbers of their own for the whole run, of 32 bits with the task.
_MOST_NUMBERS = 4_000


class Joining:
    """Looks after the extra tasks of one run. For one thread."""

    def __init__(
        self, context: RunContext, spark: SparkUnit, run: Run, tasks: LongTasks, ready: Readiness
    ) -> None:
        """``ready`` are the slots that the run began with."""
        self._context = context
        self._spark = spark
        self._run = run
        self._tasks = tasks
        self._per_slot = (len(run.hosts), max(1, ready.slots))
        self._is_whole = not context.least and len(run.hosts) == len(bolt_tasks(run.topology))
        self._helps = bool(extra_hosts(run.topology, run.hosts, 1, 1)) and spark.grows
        self._began = time.monotonic()
        self._numbers = 0
        self._began_at: dict[tuple[int, ...], float] = {}
        self._absences = Absences()
        # Executors and slots that were seen last, and the slots that the run began with.
        self._executors = self._slots = self._own_slots = 0
        if self._helps:
            self._slots = spark.slots
            self._own_slots = ready.slots if context.least else self._slots
        self._asking: threading.Thread | None = None
        self._found: Readiness | None = None
        self._unfit = 0
        self._ask_at = 0.0

    def look(self, now: float) -> bool:
        """Start extra tasks on executors that have joined, and end those that have no process.

        False: none of this needs a new run.
        """
        # The next look tries again, or the watch ends the run.
        with suppress(RedisUnavailableError, StaleAttemptError):
            if self._helps:
                self._end_the_gone(now)
                if self._asking is not None:
                    self._use_answer(self._asking)
                else:
                    self._ask(now)
        return False

    def close(self) -> None:
        """Wait for the answers of executors, which may take seconds."""
        if self._asking is not None:
            self._asking.join()

    # -- executors that joined -------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        """Ask whether Python starts on slots that have joined, in another thread."""
        executors = self._spark.executors
        if (executors == self._executors and not self._lacking()) or now < self._ask_at:
            return
        self._executors = executors
        self._slots = self._spark.slots
        if self._is_whole and now - self._began < _FIRST_S:
            self._own_slots = self._slots
        wanted = min(self._lacking(), self._spark.free)
        if wanted > 0:
            self._asking = threading.Thread(
                target=self._answer, args=[wanted], name="joining", daemon=True
            )
            self._asking.start()

    def _lacking(self) -> int:
        """Return the number of further hosts that the executors have slots for."""
        hosts, slots = self._per_slot
        wanted = max(0, self._slots - self._own_slots) * hosts // slots
        return wanted - len(self._tasks.further)

    def _answer(self, wanted: int) -> None:
        with suppress(Exception):  # Spark ends, which the watch notices
            self._found = self._spark.ready(wanted)

    def _use_answer(self, asking: threading.Thread) -> None:
        if asking.is_alive():
            return
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
        self._adopt([*self._tasks.further, *hosts])
        self._numbers += count
        for host in hosts:
            self._began_at[host] = time.monotonic()
            self._tasks.join(host)
        log.info(
            "executors have joined run %s of %s: %s in %s more", run.id, run.topology.name,
            counted(sum(map(len, hosts)), "bolt task"), counted(len(hosts), "Spark task"),
            extra={"event": "executor_joined"},
        )  # fmt: skip

    def _adopt(self, further: list[tuple[int, ...]]) -> None:
        """Give the run the inboxes of these hosts, and delete those of other further hosts."""
        extra = [task for host in further for task in host]
        self._context.inboxes.adopt(self._run.id, [*inboxes_of(self._run.topology), *extra])

    # -- executors that are gone -----------------------------------------------------------------

    def _end_the_gone(self, now: float) -> None:
        """End the further hosts that have had no process for long; release their messages."""
        further = self._tasks.further
        if not further:
            return
        figures = self._context.inboxes.figures([task for host in further for task in host])
        missing: list[int] = []
        for host in further:
            staffing = Staffing.of({task: figures[task] for task in host}, UNATTENDED_S)
            missing += staffing.missing(now - self._began_at[host])
        gone = set(self._absences.looked(missing))
        for host in further:
            if gone.intersection(host):
                self._end(host)

    def _end(self, host: tuple[int, ...]) -> None:
        self._tasks.leave(host)
        released = self._context.end_extra(self._run, host)
        self._adopt(self._tasks.further)
        log.warning(
            "the executor of the extra tasks %s is gone; released %s",
            ", ".join(map(str, host[:10])), counted(released, "message"),
            extra={"event": "executor_left"},
        )  # fmt: skip

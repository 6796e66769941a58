"""Looks at one run again and again, until there is a reason to end it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tiercel.acker.errors import RedisUnavailableError
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.state.store import AGED_EVERY_S
from tiercel.spark_jobs.topology.placement import inboxes_of
from tiercel.workers.control.contract import Rebalance, State
from tiercel.workers.driver.ground import Ground
from tiercel.workers.driver.hosts import Tasks
from tiercel.workers.driver.keeper import Keeper
from tiercel.workers.driver.watch import Absences, Ended, Staffing, lost_s

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_FIGURES_S = 1.0
# For what is on its way when a run ends with which nothing is wrong. Spout workers look twice per
# second whether to send, and a tuple between two inboxes may be overlooked once: nothing is on its
# way when several looks in a row find nothing.
_DRAIN_S = 10.0
_QUIET_LOOKS = 4


class RunWatch:
    """The eye on the runs of one driver. For one thread."""

    def __init__(
        self,
        ground: Ground,
        keeper: Keeper,
        stop: threading.Event,
        is_over: Callable[[], bool],
    ) -> None:
        """``stop`` is set when a signal ended everything.

        ``is_over`` asks Redis as well whether an operator did.
        """
        self._ground = ground
        self._name = ground.topology.name
        self._keeper = keeper
        self._stop = stop
        self._is_over = is_over

    def until_end(
        self, run: Run, tasks: Tasks, order: Rebalance, may_widen: Callable[[float], bool]
    ) -> Ended:
        """Look at a run that obeys ``order`` until it is over, and return why it is.

        ``may_widen`` tells at a time whether Spark has slots again that the run lacks.
        """
        began = time.monotonic()
        look_at = age_at = began
        absences = Absences()
        while not self._stop.wait(_LOOK_S):
            self._ground.heartbeat.beat()
            now = time.monotonic()
            ended = self._ended_by_itself(tasks)
            if ended is not None:
                return ended
            if now >= look_at:
                look_at = now + _FIGURES_S
                if self._is_over():
                    break
                if now >= age_at:
                    age_at = now + AGED_EVERY_S
                    self._age()
                if self._is_rebalanced(order):
                    log.info("%s is rebalanced", self._name, extra={"event": "rebalanced"})
                    self._drain(run, tasks)
                    return Ended.REBALANCED
                ended = self._looked(run, tasks, now - began, absences)
                if ended is not None:
                    return ended
                if may_widen(now):
                    log.info(
                        "Spark has slots again that were lost: planning anew",
                        extra={"event": "slots_back"},
                    )
                    self._drain(run, tasks)
                    return Ended.REBALANCED
        return Ended.STOPPED

    def _age(self) -> None:
        """While no spout may emit, nothing that was applied can come again, and none of it ages."""
        with suppress(RedisUnavailableError):
            if self._ground.control.state() in (None, State.ACTIVE):
                self._ground.age()

    def _ended_by_itself(self, tasks: Tasks) -> Ended | None:
        if not tasks.active and tasks.fault is not None:
            return Ended.FAILED
        if tasks.active and tasks.unfit:
            return Ended.UNFIT
        # Tasks that end without a fault were told that another run has their inboxes.
        if not self._keeper.held or not tasks.active:
            log.error(
                "another driver has taken %s over, or Redis lost its memory",
                self._name,
                extra={"event": "run_lost"},
            )
            return Ended.LOST
        return None

    def _drain(self, run: Run, tasks: Tasks) -> None:
        """Have spout workers send nothing, and wait for what is on its way.

        It need not be executed again then.
        """
        self._keeper.attend_none()
        deadline = time.monotonic() + _DRAIN_S
        quiet = 0
        while (
            quiet < _QUIET_LOOKS
            and tasks.active
            and self._keeper.held
            and time.monotonic() < deadline
        ):
            if self._stop.wait(_LOOK_S):
                return
            self._ground.heartbeat.beat()
            with suppress(RedisUnavailableError):
                figures = self._ground.inboxes.figures(inboxes_of(run.topology))
                quiet = 0 if any(one.tuples for one in figures.values()) else quiet + 1

    def _is_rebalanced(self, obeyed: Rebalance) -> bool:
        order = obeyed
        with suppress(RedisUnavailableError):
            order = self._ground.control.rebalanced(obeyed)
        return order.number != obeyed.number

    def _looked(self, run: Run, tasks: Tasks, age_s: float, absences: Absences) -> Ended | None:
        """Return why the run is over, as its inboxes tell; None if it is not."""
        try:
            found = self._ground.inboxes.figures(inboxes_of(run.topology))
        except RedisUnavailableError:
            absences.looked(())
            return None
        if not all(one.adopted for one in found.values()):
            log.error("Redis lost its memory", extra={"event": "run_lost"})
            return Ended.LOST
        figures = {task: found[task] for task in _tasks_of(run)}
        timeout_s = run.topology.config.message_timeout_secs
        missing = Staffing.of(figures, lost_s(timeout_s, is_planned=False)).missing(age_s)
        if missing and tasks.waiting:
            missing = Staffing.of(figures, lost_s(timeout_s, is_planned=True)).missing(age_s)
        missing = absences.looked(missing)
        if missing:
            named = ", ".join(str(task) for task in missing[:10])
            log.error(
                "no process runs the bolt tasks %s", named, extra={"event": "tasks_unattended"}
            )
            return Ended.UNATTENDED
        return None


def _tasks_of(run: Run) -> list[int]:
    return [task for host in run.hosts for task in host]

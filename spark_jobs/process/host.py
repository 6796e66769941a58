"""One Spark task: runs its share of the bolt tasks, a thread each, to the run's end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.spark_jobs.process.task import BoltTask
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.arrivals import waiting_roots
from tiercel.spark_jobs.suspects.watchdog import Doing, Watchdog, Watched
from tiercel.spark_jobs.whereabouts import of_this_process

log = logging.getLogger(__name__)

_BEAT_S = 1.0
# Between two looks for calls that last.
_LOOK_S = 0.05
# Time for the last steps when the run ends.
_PATIENCE_S = 10.0
# Time for them when the process ends because a bolt hangs.
_PARTING_S = 1.0

Watching = Callable[[Sequence[Watched], Callable[[int], None]], Watchdog]


class LostTaskError(RuntimeError):
    """A bolt task ended before its run: Spark starts the Spark task again."""


class Host:
    """Keeps the bolt tasks of one process at work."""

    def __init__(
        self, around: Around, tasks: Sequence[int], watching: Watching | None = None
    ) -> None:
        """``watching`` looks for bolts that hang, a ``Watchdog`` if the topology has a
        message timeout.
        """
        self._around = around
        self._tasks = [BoltTask(around, task) for task in tasks]
        self._threads = [
            threading.Thread(target=task.run, name=f"task {task.task}", daemon=True)
            for task in self._tasks
        ]
        self._watching = watching or partial(Watchdog, around.longest_call)
        self._lookouts: Sequence[Watched] = ()
        # The call that each task was in at the last beat, and since when.
        self._calls: dict[int, tuple[Doing, float]] = {}
        self._place = of_this_process().packed()
        self._stop = threading.Event()
        self._over = False

    def stop(self) -> None:
        """Thread-safe: the run is over."""
        self._over = True
        self._stop.set()

    def run(self) -> None:
        """Work until the run is over.

        Raises LostTaskError when a task cannot go on in this process.
        """
        suspicion = self._around.suspicion
        self._lookouts = lookouts = [
            suspicion.lookout(
                task.task,
                task.executing,
                self._waiting(task),
                self._around.call_limit(task.task),
            )
            for task in self._tasks
        ]
        with self._watching(lookouts, self._part).looking():
            for thread in self._threads:
                thread.start()
            try:
                beat_at = time.monotonic() + _BEAT_S
                while not self._stop.wait(_LOOK_S):
                    for task in self._tasks:
                        task.give_back()
                    if time.monotonic() >= beat_at:
                        beat_at = time.monotonic() + _BEAT_S
                        self._beat()
            finally:
                self._end(self._tasks, _PATIENCE_S)
        lost = [task for task in self._tasks if task.error is not None]
        if lost and not self._over:
            named = ", ".join(f"{task.task}: {task.error}" for task in lost)
            raise LostTaskError(f"bolt tasks ended: {named}")

    def _waiting(self, task: BoltTask) -> Callable[[], set[int]]:
        around = self._around
        return partial(waiting_roots, around.inboxes, around.run, around.topology, task.task)

    def _part(self, hanging: int) -> None:
        """Let the other tasks commit their executed tuples, for the process is about to end."""
        self._end([task for task in self._tasks if task.task != hanging], _PARTING_S)

    def _end(self, tasks: Sequence[BoltTask], patience_s: float) -> None:
        for task in tasks:
            task.stop()
        until = time.monotonic() + patience_s
        for task, thread in zip(self._tasks, self._threads, strict=True):
            if task in tasks:
                thread.join(max(0.0, until - time.monotonic()))
        self._flush()

    def _beat(self) -> None:
        """Say that the tasks are attended, tell the counters, and look whether the run goes on."""
        around = self._around
        attempts = {task.task: task.attempt for task in self._tasks if task.attempt is not None}
        try:
            stale = around.inboxes.beat(around.run, attempts, self._doing_s(), self._place)
        except RedisUnavailableError as error:
            log.debug("%s", error, extra={"event": "redis_away"})
            return
        if any(task.error is not None for task in self._tasks):
            self._over = self._run_is_over()
            self._stop.set()
        for task in self._tasks:
            if task.task in stale:
                task.stop()
                task.error = task.error or StaleAttemptError(
                    "another attempt or run has taken over"
                )
        # Apart: a server that is out of memory takes no counts, but hears who is there.
        with suppress(RedisUnavailableError):
            around.counting.flush()

    def _doing_s(self) -> dict[int, float]:
        """Seconds for which tasks have been in one call of their bolt, as far as the beats saw."""
        now = time.monotonic()
        before = self._calls
        self._calls = {}
        for lookout in self._lookouts:
            doing = lookout.doing()
            if doing is not None:
                last, since = before.get(doing.task, (None, now))
                self._calls[doing.task] = (doing, since if doing.same(last) else now)
        return {task: now - since for task, (_, since) in self._calls.items() if since < now}

    def _run_is_over(self) -> bool:
        """Return True if no task may begin a new attempt."""
        try:
            self._around.inboxes.draw(self._around.run, self._tasks[0].task)
        except StaleAttemptError:
            return True
        except RedisUnavailableError:
            return False
        return False

    def _flush(self) -> None:
        try:
            self._around.counting.flush()
        except RedisUnavailableError as error:
            log.warning("the last counts are lost: %s", error, extra={"event": "counts_lost"})

"""One Spark task: runs its share of the bolt tasks, each in a thread of its own, until the run is over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from acker import LedgerUnavailableError
from queues.inbox.records import StaleAttemptError
from spark_jobs.running.around import Around
from spark_jobs.running.task import BoltTask

log = logging.getLogger(__name__)

_BEAT_S = 1.0
_PATIENCE_S = 10.0
"""How long the last steps may take when the run ends."""


class LostTaskError(RuntimeError):
    """A bolt task of this process ended although the run goes on: Spark starts the Spark task again."""


class Host:
    """Keeps the bolt tasks of one process at work."""

    def __init__(self, around: Around, tasks: Sequence[int]) -> None:
        self._around = around
        self._tasks = [BoltTask(around, task) for task in tasks]
        self._stop = threading.Event()
        self._over = False

    def stop(self) -> None:
        """Thread-safe: the run is over."""
        self._over = True
        self._stop.set()

    def run(self) -> None:
        """Work until the run is over. Raises LostTaskError when a task cannot go on in this process."""
        threads = [threading.Thread(target=task.run, name=f"task {task.task}", daemon=True) for task in self._tasks]
        for thread in threads:
            thread.start()
        try:
            while not self._stop.wait(_BEAT_S):
                self._beat()
        finally:
            for task in self._tasks:
                task.stop()
            for thread in threads:
                thread.join(_PATIENCE_S)
            self._flush()
        lost = [task for task in self._tasks if task.error is not None]
        if lost and not self._over:
            named = ", ".join(f"{task.task}: {task.error}" for task in lost)
            raise LostTaskError(f"bolt tasks ended: {named}")

    def _beat(self) -> None:
        """Say that the tasks are attended, tell the counters, and look whether the run goes on."""
        around = self._around
        attempts = {task.task: task.attempt for task in self._tasks if task.attempt is not None}
        try:
            around.counting.flush()
            stale = around.inboxes.beat(around.run, attempts)
        except LedgerUnavailableError as error:
            log.debug("%s", error, extra={"event": "redis_away"})
            return
        if any(task.error is not None for task in self._tasks):
            self._over = self._run_is_over()
            self._stop.set()
        for task in self._tasks:
            if task.task in stale:
                task.stop()
                task.error = task.error or StaleAttemptError("another attempt or run has taken over")

    def _run_is_over(self) -> bool:
        """Whether no task may begin a new attempt."""
        try:
            self._around.inboxes.draw(self._around.run, self._tasks[0].task)
        except StaleAttemptError:
            return True
        except LedgerUnavailableError:
            return False
        return False

    def _flush(self) -> None:
        try:
            self._around.counting.flush()
        except LedgerUnavailableError as error:
            log.warning("the last counts are lost: %s", error, extra={"event": "counts_lost"})

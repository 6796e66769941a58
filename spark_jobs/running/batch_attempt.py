"""One attempt at the task of a ``BatchBolt``: a step is a batch, which waits for company."""

from __future__ import annotations

import threading

from tiercel.acker.inbox.records import Claims
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.batch_slices import BatchSlices
from tiercel.spark_jobs.topology.batching import Batching


class BatchAttempt(Attempt):
    """``Attempt`` whose steps take what the batches say."""

    def __init__(
        self, around: Around, task: int, stop: threading.Event, batching: Batching
    ) -> None:
        super().__init__(around, task, stop)
        self._batches = BatchSlices(around.clock, batching)
        self._slices = self._batches

    def _take(self, wait_s: float) -> None:
        waiting = self._backlog.tuples
        wanted = self._batches.wanted(waiting)
        if not wanted:
            return
        if self._batches.patience_s(waiting, wait_s):
            self._stop.wait(self._batches.rest_s())
        self._fetch(wanted, self._batches.patience_s(waiting, wait_s), Claims(wanted))

    def _most(self) -> int:
        return self._batches.allowed(self._backlog.tuples)

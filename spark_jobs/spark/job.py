"""The Spark job of one run: a long-lived task per host, restarted whenever it dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyspark import SparkContext

from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.travel import without_spouts

log = logging.getLogger(__name__)


class LongTasks:
    """Runs in a thread from ``start`` until every host has ended, or the job failed."""

    def __init__(self, context: SparkContext, run: Run) -> None:
        self._context = context
        self._run = run
        self._thread = threading.Thread(target=self._collect, name=f"run {run.id}", daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Hand the tasks to Spark; returns at once."""
        self._thread.start()

    @property
    def active(self) -> bool:
        """True while the job has not ended."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Number of tasks for which Spark has no slot now: their executor is gone."""
        tracker = self._context.statusTracker()
        stages = [
            tracker.getStageInfo(stage)
            for job in tracker.getJobIdsForGroup(self._run.id)
            if (info := tracker.getJobInfo(job)) is not None
            for stage in info.stageIds
        ]
        return sum(
            stage.numTasks - stage.numActiveTasks - stage.numCompletedTasks
            for stage in stages
            if stage is not None
        )

    @property
    def fault(self) -> str | None:
        """Reason for which it ended by itself, in one line."""
        if self._error is None:
            return None
        lines = [line.strip() for line in str(self._error).splitlines() if line.strip()]
        named = [line for line in lines if "Error" in line or "Exception" in line]
        return (named[-1:] or lines[:1] or ["no reason given"])[0][:500]

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long; returns whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Have Spark kill what still runs."""
        self._context.cancelJobGroup(self._run.id)

    def _collect(self) -> None:
        run = replace(self._run, topology=without_spouts(self._run.topology))
        context = self._context
        name = run.topology.name
        context.setJobGroup(run.id, f"tiercel {name}, run {run.id}", interruptOnCancel=False)
        hosts = len(run.hosts)

        def host(number: int, _: Iterable[int]) -> Iterator[int]:
            run.host(number)
            yield number

        try:
            context.parallelize(range(hosts), hosts).mapPartitionsWithIndex(host).collect()
        except Exception as error:  # noqa: BLE001 - Py4J raises many kinds
            self._error = error

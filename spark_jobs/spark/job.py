"""The Spark jobs of one run: a long-lived task per host, restarted whenever it dies.

The run begins with one job. Executors that join later get one more job per host.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from pyspark import SparkContext, SparkStageInfo

from tiercel.spark_jobs.spark.executors import running_tasks, start_failures, trouble_of
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.shipping import without_spouts

log = logging.getLogger(__name__)

# A process may fail to start once because its machine is briefly short of memory.
_UNFIT_ATTEMPTS = 3
_UNFIT_WITHIN_S = 10.0


class _Job(threading.Thread):
    """One Spark job, and the thread that waits for its end."""

    def __init__(self, context: SparkContext, run: Run, group: str) -> None:
        super().__init__(name=f"run {group}", daemon=True)
        self.group = group
        self.error: BaseException | None = None
        self._context = context
        self._run = replace(run, topology=without_spouts(run.topology))
        self._stages: Sequence[int] = ()

    @property
    def hosts(self) -> Sequence[tuple[int, ...]]:
        """The bolt tasks of each of its Spark tasks."""
        return self._run.hosts

    @property
    def stages(self) -> Sequence[int]:
        """The ids of its stages: one, once Spark has it."""
        if not self._stages:
            tracker = self._context.statusTracker()
            infos = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self.group))
            self._stages = [stage for info in infos if info is not None for stage in info.stageIds]
        return self._stages

    def run(self) -> None:
        run, context = self._run, self._context
        text = f"tiercel {run.topology.name}, run {self.group}"
        context.setJobGroup(self.group, text, interruptOnCancel=False)
        hosts = len(run.hosts)

        def host(number: int, _: Iterable[int]) -> Iterator[int]:
            run.host(number)
            yield number

        try:
            context.parallelize(range(hosts), hosts).mapPartitionsWithIndex(host).collect()
        except Exception as error:  # noqa: BLE001 - Py4J raises many kinds
            self.error = error


class LongTasks:
    """Runs in threads from ``start`` until every host has ended or the first job has failed."""

    def __init__(self, context: SparkContext, run: Run) -> None:
        self._context = context
        self._run = run
        self._job = _Job(context, run, run.id)
        # The jobs of further hosts, by the tasks of each.
        self._further: dict[tuple[int, ...], _Job] = {}
        self._numbers = itertools.count(1)
        self._failed = 0
        self._trouble = ""
        # Attempts whose Python could not start, and when each was first seen.
        self._unfit: dict[int, float] = {}

    def start(self) -> None:
        """Hand the tasks to Spark; returns at once."""
        self._job.start()

    @property
    def further(self) -> list[tuple[int, ...]]:
        """The tasks of each further host."""
        return list(self._further)

    @property
    def over(self) -> list[tuple[int, ...]]:
        """The tasks of each further host that has ended."""
        return [host for host, job in self._further.items() if not job.is_alive()]

    def executors(self) -> dict[tuple[int, ...], str]:
        """Return the executor of each host that Spark runs now, by the host's tasks."""
        jobs = [self._job, *self._further.values()]
        hosts = {stage: job.hosts for job in jobs for stage in job.stages}
        tasks = {stage: len(each) for stage, each in hosts.items()}
        return {
            hosts[stage][number]: executor
            for stage, number, executor in running_tasks(self._context, tasks)
        }

    def join(self, host: tuple[int, ...]) -> None:
        """Hand one further host to Spark; returns at once. Its inboxes must belong to the run."""
        run = replace(self._run, hosts=(host,))
        job = _Job(self._context, run, f"{run.id}+{next(self._numbers)}")
        self._further[host] = job
        job.start()

    def leave(self, host: tuple[int, ...]) -> None:
        """Have Spark kill a further host, or not start it."""
        self._context.cancelJobGroup(self._further.pop(host).group)

    @property
    def active(self) -> bool:
        """True while the first job has not ended."""
        return self._job.is_alive()

    @property
    def waiting(self) -> int:
        """Number of tasks of the first job that have no slot now because their executor is gone."""
        return sum(
            stage.numTasks - stage.numActiveTasks - stage.numCompletedTasks
            for stage in self._stages(self._jobs(self._job))
        )

    def _jobs(self, *jobs: _Job) -> list[int]:
        tracker = self._context.statusTracker()
        return [each for job in jobs for each in tracker.getJobIdsForGroup(job.group)]

    def _stages(self, jobs: Iterable[int]) -> list[SparkStageInfo]:
        tracker = self._context.statusTracker()
        infos = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
        found = [tracker.getStageInfo(stage) for info in infos for stage in info.stageIds]
        return [stage for stage in found if stage is not None]

    @property
    def unfit(self) -> str:
        """The reason why executors repeatedly fail to start Python for this run's tasks; empty if
        they do not.

        Spark retries such a task within milliseconds and without end. The death of a Python that
        has started does not count: it is reported elsewhere, and a tuple may be the reason.
        """
        if not self._trouble:
            # If the JVM has just ended, the job soon fails with that.
            with suppress(Exception):
                self._trouble = self._look_for_trouble()
        return self._trouble

    def _look_for_trouble(self) -> str:
        jobs = self._jobs(self._job, *self._further.values())
        failed = sum(stage.numFailedTasks for stage in self._stages(jobs))
        if failed == self._failed:
            return ""
        self._failed = failed
        now = time.monotonic()
        found = dict(each for job in jobs for each in start_failures(self._context, job))
        for attempt in found:
            self._unfit.setdefault(attempt, now)
        fresh = [each for each in found if now - self._unfit[each] < _UNFIT_WITHIN_S]
        if len(fresh) < _UNFIT_ATTEMPTS:
            return ""
        return trouble_of({found[each] for each in fresh}, str(self._context.pythonExec))

    @property
    def fault(self) -> str | None:
        """The reason why the first job failed, in one line; None if it did not."""
        if self._job.error is None:
            return None
        lines = [line.strip() for line in str(self._job.error).splitlines() if line.strip()]
        named = [line for line in lines if "Error" in line or "Exception" in line]
        return (named[-1:] or lines[:1] or ["no reason given"])[0][:500]

    def wait(self, seconds: float) -> bool:
        """Wait for the end of all jobs for at most this long; returns True if they have ended."""
        until = time.monotonic() + seconds
        jobs = [self._job, *self._further.values()]
        for job in jobs:
            job.join(max(0.0, until - time.monotonic()))
        return not any(job.is_alive() for job in jobs)

    def cancel(self) -> None:
        """Have Spark kill the remaining tasks."""
        for job in (self._job, *self._further.values()):
            self._context.cancelJobGroup(job.group)

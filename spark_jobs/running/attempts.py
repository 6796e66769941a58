"""The kind of attempt that a bolt needs."""

from __future__ import annotations

import threading

from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.batch_attempt import BatchAttempt
from tiercel.spark_jobs.running.calling import CallingAttempt
from tiercel.spark_jobs.topology.batching import batching_of
from tiercel.spark_jobs.topology.concurrency import concurrency_of


def attempt_at(around: Around, task: int, stop: threading.Event) -> Attempt:
    """Begin an attempt at a bolt task. Raises StaleAttemptError."""
    spec = around.topology.bolts[around.topology.component_of(task)]
    if concurrency_of(spec) is not None:
        return CallingAttempt(around, task, stop)
    batching = batching_of(spec)
    if batching is not None:
        return BatchAttempt(around, task, stop, batching)
    return Attempt(around, task, stop)

"""The kind of attempt that a bolt needs."""

from __future__ import annotations

import threading

from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.batch_attempt import BatchAttempt
from tiercel.spark_jobs.running.calling import CallingAttempt
from tiercel.spark_jobs.running.ordered_attempt import (
    OrderedAttempt,
    OrderedBatchAttempt,
)
from tiercel.spark_jobs.running.ordered_calling import OrderedCallingAttempt
from tiercel.spark_jobs.topology.batching import batching_of
from tiercel.spark_jobs.topology.concurrency import concurrency_of
from tiercel.spark_jobs.topology.ordering import ordered_by_of


def attempt_at(around: Around, task: int, stop: threading.Event) -> Attempt:
    """Begin an attempt at a bolt task. Raises StaleAttemptError."""
    spec = around.topology.bolts[around.topology.component_of(task)]
    ordered = bool(ordered_by_of(spec))
    if concurrency_of(spec) is not None:
        calling = OrderedCallingAttempt if ordered else CallingAttempt
        return calling(around, task, stop)
    batching = batching_of(spec)
    if batching is not None:
        gathering = OrderedBatchAttempt if ordered else BatchAttempt
        return gathering(around, task, stop, batching)
    return (OrderedAttempt if ordered else Attempt)(around, task, stop)

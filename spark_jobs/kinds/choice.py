"""Chooses the kind of a bolt and begins attempts with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from tiercel.spark_jobs.bolts.bolt import ArrowBolt, BasicBolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.kinds.arrow import ARROW
from tiercel.spark_jobs.kinds.batch import InBatches
from tiercel.spark_jobs.kinds.calling import Calls
from tiercel.spark_jobs.kinds.ordered import CallsAgain, CallsInOrder, InOrder
from tiercel.spark_jobs.kinds.plain import BASIC, RICH, STATEFUL
from tiercel.spark_jobs.kinds.retries import TaskRetries
from tiercel.spark_jobs.kinds.task_order import (
    OrderedBacklog,
    OrderGate,
    ReadyBacklog,
    TaskOrder,
    policy_of,
)
from tiercel.spark_jobs.kinds.windows.kind import Windows
from tiercel.spark_jobs.kinds.windows.once import OnceWindows
from tiercel.spark_jobs.kinds.windows.task import TaskWindows
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt, Plain
from tiercel.spark_jobs.running.kind import BoltKind
from tiercel.spark_jobs.topology.bolt_settings import batching_of, concurrency_of, ordered_by_of
from tiercel.spark_jobs.topology.graph import BoltSpec
from tiercel.spark_jobs.topology.windowing import windowing_of

# The first class that matches a bolt decides how it is executed.
_EXECUTIONS = ((ArrowBolt, ARROW), (StatefulBolt, STATEFUL), (BasicBolt, BASIC), (object, RICH))
# Processes in a row that die before they finish a step. Two deaths may have any cause.
_DEATHS = 5
Begin = Callable[[Attempt, bytes | None], BoltKind]


def attempt_at(around: Around, task: int, stop: threading.Event) -> Attempt:
    """Begin an attempt at a bolt task. Raises StaleAttemptError."""
    attempt = _attempt_at(around, task, stop)
    copy, retaken = attempt.kind.copy, attempt.retaken
    # If few attributes are stored, the processes died of something else.
    if retaken is not None and copy.is_large and (deaths := retaken.deaths) >= _DEATHS:
        copy.begin_anew(f"{deaths} processes in a row died before they finished a step")
    return attempt


def _attempt_at(around: Around, task: int, stop: threading.Event) -> Attempt:
    spec = around.topology.bolts[around.topology.component_of(task)]
    windowing = windowing_of(around.topology, around.topology.component_of(task))
    if windowing is not None:
        kind = OnceWindows if windowing.bolt.once else TaskWindows
        windows = kind(around, task, windowing, policy_of(around.topology))
        return Attempt(around, task, stop, partial(Windows, order=windows), windows)
    has_calls = concurrency_of(spec) is not None
    retry = spec.retry
    if ordered_by_of(spec):
        order = TaskOrder(around, task, OrderedBacklog if has_calls else ReadyBacklog, retry)
        in_order = _calls_in_order(order) if has_calls else _in_order(_one_by_one(spec), order)
        return Attempt(around, task, stop, in_order, order)
    if retry is None:
        return Attempt(around, task, stop, Calls if has_calls else _one_by_one(spec))
    retries = TaskRetries(around, task, retry)
    again = _calls_again(retries) if has_calls else _in_order(_one_by_one(spec), retries)
    return Attempt(around, task, stop, again, retries)


def _one_by_one(spec: BoltSpec) -> Begin:
    """Return the kind of a bolt that runs one call at a time."""
    batching = batching_of(spec)
    if batching is not None:
        return partial(InBatches, batching=batching)
    execution = next(one for base, one in _EXECUTIONS if isinstance(spec.bolt, base))
    return partial(Plain, execution=execution)


def _in_order(kind: Begin, order: TaskOrder | TaskRetries) -> Begin:
    return lambda attempt, snapshot: InOrder(attempt, kind(attempt, snapshot), order)


def _calls_in_order(order: TaskOrder) -> Begin:
    gate = OrderGate(order)
    return lambda attempt, _: CallsInOrder(
        attempt, Calls(attempt, None, gate, retries=True), gate, order
    )


def _calls_again(retries: TaskRetries) -> Begin:
    return lambda attempt, _: CallsAgain(attempt, Calls(attempt, None, retries=True), retries)

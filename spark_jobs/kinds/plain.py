"""Bolts called once per tuple: ``Bolt``, ``BasicBolt`` and ``StatefulBolt``.

An error raised by a bolt fails tuples, never the Spark task. ``by_halves`` finds the tuple to blame
for the kinds that pass many tuples to one call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self, TypeVar, cast

from tiercel.acker.inbox.chunk import PARCEL_BYTES
from tiercel.spark_jobs.bolts.bolt import BasicBolt, Bolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.tuples import ACKED, Tuple
from tiercel.spark_jobs.bolts.verdicts import RetryLater
from tiercel.spark_jobs.emitting.answers import Answers, AnyThreadRecorder
from tiercel.spark_jobs.emitting.fold import departures
from tiercel.spark_jobs.emitting.record import BasicRecord, BasicRecorder, Record
from tiercel.spark_jobs.errors import check_result
from tiercel.spark_jobs.reasons import raised
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.running.step import ASK_S, Execution, Step

log = logging.getLogger(__name__)


def execute_basic(bolt: BasicBolt, step: Step) -> bool:
    """Execute the input of a ``BasicBolt``; a tuple is acked when its call returns."""
    return _execute_each(bolt, bolt.execute, BasicRecorder, step)


def _execute_stateful(bolt: StatefulBolt, step: Step) -> bool:
    """Lend the bolt its state and execute the input as for a ``BasicBolt``."""
    record = step.record
    with cast("TaskStates", step.states).lent(step.task, bolt, record):
        once = record.once
        if once is not None:
            execute = once.guarded(bolt.execute)
            return _execute_each(bolt, execute, once.collector, step)
        execute = bolt.state.guarded(bolt.execute)
        return _execute_each(bolt, execute, BasicRecorder, step)


def _execute_each(
    bolt: BasicBolt,
    execute: Callable[..., object],
    collecting: Callable[[Record], BasicRecorder],
    step: Step,
) -> bool:
    record = step.record
    began_ns = time.perf_counter_ns()
    # The inherited ``flush`` does nothing.
    flushes = getattr(bolt.flush, "__func__", None) is not BasicBolt.flush

    def flush(collector: BasicRecorder) -> bool:
        # A late emission by a thread raises an error instead of being anchored to the last tuple.
        collector.current = None
        return record.flush(partial(bolt.flush, collector))

    if step.spans is not None:
        execute = step.spans.around(execute)
    collector = _call_each(execute, collecting, step, flush)
    collector.current = record.doing = None
    trusted = not record.aborted and (not flushes or flush(collector))
    record.execute_ns += time.perf_counter_ns() - began_ns
    return trusted


def _call_each(
    execute: Callable[..., object],
    collecting: Callable[[Record], BasicRecorder],
    step: Step,
    flush: Callable[[BasicRecorder], bool],
) -> BasicRecorder:
    record, limit = step.record, step.record.outputs.limit
    collector = collecting(record)
    tuples, slices = step.input(partial(flush, collector))
    clock = time.monotonic if slices is None else slices.clock
    begun, returned_s, ask_at = 0, 0.0, 0.0
    # Calls that return are measured together, up to one that raises.
    since = clock()
    for tup in tuples:
        # Read the clock once per tuple: two reads would cost as much as the loop itself.
        now = clock()
        if slices is not None:
            slices.begun = begun = begun + 1
            if now >= ask_at or slices.asked_back or record.size >= PARCEL_BYTES:
                if step.ends(slices):
                    break
                ask_at = now + ASK_S
        collector.current = record.doing = tup
        try:
            if (result := execute(tup, collector)) is not None:
                check_result(result, execute)
        except raised() as error:
            _fail(tup, error, record)
            returned_s += now - since
            since = clock()
        else:
            tup.state = ACKED
        if collector.room != limit:
            record.size += limit - collector.room
            collector.room = limit
    if slices is not None:
        slices.may()
    record.returned_ns += int(1e9 * (returned_s + clock() - since))
    return collector


def _execute_rich(bolt: Bolt, step: Step) -> bool:
    """Execute the input of a ``Bolt``, which acks explicitly.

    Acks and failures queued by the bolt's threads take effect before and after the input.
    """
    record = step.record
    began = time.perf_counter_ns()
    output = AnyThreadRecorder(record, cast("Answers", record.answers))
    record.thread = threading.get_ident()
    output.give_answers()

    def flush() -> bool:
        trusted = record.flush(partial(bolt.flush, output))
        if trusted:
            output.give_answers()
        return trusted

    execute = bolt.execute if step.spans is None else step.spans.around(bolt.execute)
    tuples, slices = step.input(flush)
    for begun, tup in enumerate(tuples, 1):
        if slices is not None:
            slices.begun = begun
            if step.ends(slices):
                break
        record.doing = tup
        record.call()
        tup.began_ns = time.time_ns()
        try:
            if (result := execute(tup, output)) is not None:
                check_result(result, execute)
        except raised() as error:
            _fail(tup, error, record)
    if slices is not None:
        slices.may()
    record.doing = None
    trusted = not record.aborted and flush()
    record.thread = 0
    record.execute_ns += time.perf_counter_ns() - began
    return trusted


def _fail(tup: Tuple, error: BaseException, record: Record) -> None:
    record.fail(tup, *record.blame(error))
    log.debug("%s: %s failed", record.component, tup, extra={"event": "tuple_failed"})


RICH = Execution(record=Record, execute=_execute_rich, departures=partial(departures, basic=False))
BASIC = Execution(
    record=BasicRecord, execute=execute_basic, departures=partial(departures, basic=True)
)
STATEFUL = Execution(
    record=BasicRecord,
    execute=_execute_stateful,
    departures=partial(departures, basic=True),
    states=TaskStates,
)


class Divisible(Protocol):
    """The input of one call, which can be split in two."""

    def __len__(self) -> int: ...

    def halves(self) -> tuple[Self, Self]:
        """Split an input of two or more tuples into its first and its second half."""


P = TypeVar("P", bound=Divisible)


def by_halves(
    part: P, call: Callable[[P], None], refuse: Callable[[P, BaseException], None]
) -> None:
    """Pass the input to ``call``; if the call raises, split the input and retry each half.

    ``refuse`` receives each single tuple for which the call raises. If a call raises
    ``RetryLater``, ``refuse`` receives the whole input of that call, as no tuple is to blame.
    ``call`` must leave nothing behind when it raises.
    """
    try:
        call(part)
    except raised() as error:
        if len(part) == 1 or isinstance(error, RetryLater):
            refuse(part, error)
            return
    else:
        return
    for half in part.halves():
        by_halves(half, call, refuse)

"""Bolts that are called for each tuple: ``Bolt``, ``BasicBolt`` and ``StatefulBolt``.

An error that a bolt raises fails tuples, never the Spark task. ``by_halves`` finds the tuple to
blame for kinds that give a call many tuples.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self, TypeVar, cast

from tiercel.spark_jobs.bolts.bolt import BasicBolt, Bolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.tuples import ACKED, Tuple
from tiercel.spark_jobs.bolts.verdicts import RetryLater
from tiercel.spark_jobs.emitting.answers import Answers, AnyThreadRecorder
from tiercel.spark_jobs.emitting.collectors import BasicRecorder
from tiercel.spark_jobs.emitting.fold import departures
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import RAISED
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.running.step import Execution, May, Step
from tiercel.spark_jobs.suspects.notes import Watch

log = logging.getLogger(__name__)


def execute_basic(bolt: BasicBolt, step: Step, may: May | None, noting: Watch | None) -> bool:
    """Execute the input of a ``BasicBolt``, whose tuples are acked by returning."""
    return _execute_each(bolt, bolt.execute, BasicRecorder, step, may, noting)


def _execute_stateful(
    bolt: StatefulBolt, step: Step, may: May | None, noting: Watch | None
) -> bool:
    """Execute as a ``BasicBolt``, while the bolt has its state."""
    record = step.record
    with cast("TaskStates", step.states).lent(step.task, bolt, record):
        once = record.once
        if once is not None:
            execute = once.guarded(bolt.execute)
            return _execute_each(bolt, execute, once.collector, step, may, noting)
        execute = bolt.state.guarded(bolt.execute)
        return _execute_each(bolt, execute, BasicRecorder, step, may, noting)


def _execute_each(  # noqa: PLR0913, PLR0917 - those of a kind, and what differs between them
    bolt: BasicBolt,
    execute: Callable[..., None],
    collecting: Callable[[Record], BasicRecorder],
    step: Step,
    may: May | None,
    noting: Watch | None,
) -> bool:
    record = step.record
    clock = time.perf_counter_ns
    began_all = began = clock()
    collector = collecting(record)
    flushed = partial(bolt.flush, collector)

    def flush() -> bool:
        # A thread that comes late is told, and anchors nothing to the last tuple.
        collector.current = None
        return record.flush(flushed)

    limit = record.outputs.limit
    returned_ns = 0
    # The clock is read once per tuple, so that the next one begins when this one is done: twice
    # would cost as much as the loop.
    for tup in step.input(may, noting, flush):
        collector.current = record.doing = tup
        record.most = record.size + limit
        try:
            execute(tup, collector)
        except RAISED as error:
            _fail(tup, error, record)
            began = clock()
        else:
            tup.state = ACKED
            now = clock()
            returned_ns += now - began
            began = now
    record.returned_ns += returned_ns
    collector.current = record.doing = None
    trusted = not record.aborted and record.flush(flushed)
    record.execute_ns += clock() - began_all
    return trusted


def _execute_rich(bolt: Bolt, step: Step, may: May | None, noting: Watch | None) -> bool:
    """Execute the input of a ``Bolt``, which acks by hand.

    Answers of its threads that wait take effect before it and after it.
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

    for tup in step.input(may, noting, flush):
        record.doing = tup
        record.call()
        tup.began_ns = time.time_ns()
        try:
            bolt.execute(tup, output)
        except RAISED as error:
            _fail(tup, error, record)
    record.doing = None
    trusted = not record.aborted and flush()
    record.thread = 0
    record.execute_ns += time.perf_counter_ns() - began
    return trusted


def _fail(tup: Tuple, error: BaseException, record: Record) -> None:
    record.fail(tup, *record.blame(error))
    log.debug("%s: %s failed", record.component, tup, extra={"event": "tuple_failed"})


RICH = Execution(record=Record, execute=_execute_rich, departures=partial(departures, basic=False))
BASIC = Execution(record=Record, execute=execute_basic, departures=partial(departures, basic=True))
STATEFUL = Execution(
    record=Record,
    execute=_execute_stateful,
    departures=partial(departures, basic=True),
    states=TaskStates,
)


class Divisible(Protocol):
    """Input of one call."""

    def __len__(self) -> int: ...

    def halves(self) -> tuple[Self, Self]:
        """The first and the second half of two or more."""
        ...


P = TypeVar("P", bound=Divisible)


def by_halves(
    part: P, call: Callable[[P], None], refuse: Callable[[P, BaseException], None]
) -> None:
    """Call with the part; if that raises, with each half of it, and so on.

    ``refuse`` is called with each one that the call raises for when it stands alone, and with all
    that a call was given which raised ``RetryLater``: no one is to blame. The call must leave
    nothing behind when it raises.
    """
    try:
        call(part)
    except RAISED as error:
        if len(part) == 1 or isinstance(error, RetryLater):
            refuse(part, error)
            return
    else:
        return
    for half in part.halves():
        by_halves(half, call, refuse)

"""Runs one bolt over the input of one step.

What a bolt raises fails tuples, never the Spark task.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from tiercel.spark_jobs.bolts.bolt import BasicBolt, Bolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.tuples import ACKED, Tuple
from tiercel.spark_jobs.emitting.answers import Answers, AnyThreadRecorder
from tiercel.spark_jobs.emitting.collectors import BasicRecorder, OutputRecorder
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import RAISED
from tiercel.spark_jobs.suspects.notes import Watch

log = logging.getLogger(__name__)


def execute_bolt(
    bolt: Bolt | BasicBolt, record: Record, answers: Answers, watch: Watch | None = None
) -> bool:
    """Execute the input, all of it where no notes are taken, then flush.

    Answers that wait take effect before it and after it. Returns whether the copy can still be
    trusted.
    """
    began = time.perf_counter_ns()
    if isinstance(bolt, BasicBolt):
        basic = BasicRecorder(record) if record.once is None else record.once.collector()

        def flush() -> bool:
            basic.current = None
            return flush_bolt(lambda: bolt.flush(basic), record)

        _execute_basic(bolt, basic, watch(record.fresh, flush) if watch else record.fresh, record)
        # A thread that comes late is told, and anchors nothing to the last tuple.
        basic.current = None
    else:
        output = AnyThreadRecorder(record, answers)
        record.thread = threading.get_ident()
        output.give_answers()

        def flush() -> bool:
            trusted = flush_bolt(lambda: bolt.flush(output), record)
            if trusted:
                output.give_answers()
            return trusted

        _execute_rich(bolt, output, watch(record.fresh, flush) if watch else record.fresh, record)
    record.doing = None
    trusted = not record.aborted and flush()
    record.thread = 0
    record.execute_ns += time.perf_counter_ns() - began
    return trusted


def _execute_basic(
    bolt: BasicBolt, collector: BasicRecorder, tuples: Iterable[Tuple], record: Record
) -> None:
    execute = bolt.execute
    if record.once is not None:
        execute = record.once.guarded(execute)
    elif isinstance(bolt, StatefulBolt):
        execute = bolt.state.guarded(execute)
    clock = time.perf_counter_ns
    limit = record.outputs.limit
    returned_ns = 0
    # Read once per tuple, so that the next one begins when this one is done: twice would cost as
    # much as the loop.
    began = clock()
    for tup in tuples:
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


def _execute_rich(
    bolt: Bolt, collector: OutputRecorder, tuples: Iterable[Tuple], record: Record
) -> None:
    limit = record.outputs.limit
    for tup in tuples:
        record.doing = tup
        record.most = record.size + limit
        tup.began_ns = time.time_ns()
        try:
            bolt.execute(tup, collector)
        except RAISED as error:
            _fail(tup, error, record)


def flush_bolt(flush: Callable[[], None], record: Record) -> bool:
    """Flush; if that raises, everything fails that has not failed yet.

    Returns whether the bolt's state can still be trusted.
    """
    record.most = record.size + record.outputs.limit
    try:
        flush()
    except RAISED as error:
        record.abort(*record.blame(error, "flush"))
        return False
    return True


def fail_all(record: Record, error: BaseException, where: str) -> None:
    """Fail the whole input."""
    record.abort(*record.blame(error, where))


def _fail(tup: Tuple, error: BaseException, record: Record) -> None:
    record.fail(tup, *record.blame(error))
    log.debug("%s: %s failed", record.component, tup, extra={"event": "tuple_failed"})

"""Runs one bolt over its input of one micro-batch. What a bolt raises fails tuples, never the Spark task."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_jobs.bolt import BasicBolt, Bolt
from spark_jobs.collector import BasicCollector, OutputCollector, Record
from spark_jobs.tuples import ACKED, OPEN, Tuple

log = logging.getLogger(__name__)

_REASON_LENGTH = 500


def execute_bolt(bolt: Bolt | BasicBolt, record: Record) -> bool:
    """Execute all tuples, then flush; returns whether the bolt's state can still be trusted."""
    began = time.perf_counter_ns()
    if isinstance(bolt, BasicBolt):
        basic = BasicCollector(record)
        _execute_basic(bolt, basic, record)
        record.execute_ns += time.perf_counter_ns() - began
        basic.current = None
        return _flush(lambda: bolt.flush(basic), record)
    output = OutputCollector(record)
    _execute_rich(bolt, output, record)
    record.execute_ns += time.perf_counter_ns() - began
    return _flush(lambda: bolt.flush(output), record)


def _execute_basic(bolt: BasicBolt, collector: BasicCollector, record: Record) -> None:
    execute = bolt.execute
    for tup in record.tuples:
        collector.current = tup
        try:
            execute(tup, collector)
        except Exception as error:  # noqa: BLE001 - the contract of execute
            _fail(tup, error, record)
        else:
            tup.state = ACKED


def _execute_rich(bolt: Bolt, collector: OutputCollector, record: Record) -> None:
    for tup in record.tuples:
        try:
            bolt.execute(tup, collector)
        except Exception as error:  # noqa: BLE001 - the contract of execute
            _fail(tup, error, record)


def _flush(flush: Callable[[], None], record: Record) -> bool:
    try:
        flush()
    except Exception as error:  # noqa: BLE001 - the contract of flush
        reason = reason_of(error)
        log.warning("%s: flush failed: %s", record.component, reason, extra={"event": "flush_failed"})
        record.report(f"flush: {reason}")
        for tup in record.tuples:
            if tup.state == ACKED:
                record.fail(tup, f"flush: {reason}")
        return False
    return True


def fail_all(record: Record, error: BaseException, where: str) -> None:
    """Nothing of the input was processed."""
    reason = f"{where}: {reason_of(error)}"
    log.warning("%s: %s", record.component, reason, extra={"event": "bolt_unusable"})
    record.report(reason)
    for tup in record.tuples:
        if tup.state == OPEN:
            record.fail(tup, reason)


def reason_of(error: BaseException) -> str:
    """``ValueError: the first line``."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].strip()[:_REASON_LENGTH]


def _fail(tup: Tuple, error: Exception, record: Record) -> None:
    reason = reason_of(error)
    if record.report(reason):
        # With the traceback, and not at a level that people see: the reason reaches them from the spout and the counters.
        log.debug("%s: %s failed", record.component, tup, exc_info=error, extra={"event": "tuple_failed"})
    record.fail(tup, reason)

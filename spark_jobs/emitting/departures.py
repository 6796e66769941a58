"""Decides what leaves a bolt task at the end of a step, and what must not. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.inbox.chunk import Lineage, Rows
from tiercel.acker.ledger import Ids
from tiercel.queues.errors import SchemaError
from tiercel.spark_jobs.emitting.fold import Anchors, child_lineage, select
from tiercel.spark_jobs.emitting.outputs import TaskOutput
from tiercel.spark_jobs.emitting.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Departure:
    """Tuples that one task emitted to another on one stream."""

    stream: str
    target: int
    values: pa.RecordBatch
    lineage: Lineage


@dataclass(frozen=True, kw_only=True, slots=True)
class _Typed:
    """Emissions whose values have the stream's types, ``kept`` of all that were recorded."""

    task_output: TaskOutput
    anchors: Anchors
    kept: Rows
    values: pa.RecordBatch


def departures(
    record: Record, lineage: Lineage, seeds: Ids, *, basic: bool, batch: bool = False
) -> list[Departure]:
    """The emissions of a task that has executed its input, whose tuples have this lineage
    and these seeds.

    Values of a wrong type stay behind and fail their anchors. What a BasicBolt emitted for a tuple
    that failed, for any reason, stays behind too: the message comes again, and its tree is
    done for. So does what a BatchBolt emitted, if all its anchors failed. A Bolt's emission may
    belong to other trees as well, which count on it, so it goes. The record then counts what
    leaves.
    """
    if record.aborted:
        return []
    # All types first: a bad value on one stream fails its tuple, and what that emitted on the
    # others must stay.
    typed = [
        _typed(record, task_output)
        for task_output in record.outputs.task_outputs
        if task_output.values
    ]
    if record.reasons and (basic or batch):
        failed = np.zeros(len(seeds), bool)
        failed[list(record.reasons)] = True
        typed = [_surviving(one, failed) for one in typed]
    leaving = [_departure(one, lineage, seeds) for one in typed if one.kept.size]
    record.emitted -= _stayed(record, typed, basic=basic)
    record.transferred = sum(len(one.values) for one in leaving)
    return leaving


def _stayed(record: Record, typed: list[_Typed], *, basic: bool) -> int:
    """Return how many emissions stay behind."""
    if basic:
        # Each has one anchor, and a value of a wrong type has failed it.
        return (
            sum(tup.emitted for tup in record.tuples if tup.row in record.reasons)
            if record.reasons
            else 0
        )
    numbers: set[int] = set()
    for one in typed:
        if len(one.kept) < len(one.task_output.numbers):
            numbers |= set(one.task_output.numbers) - {
                one.task_output.numbers[kept] for kept in one.kept.tolist()
            }
    return len(numbers)


def _surviving(one: _Typed, failed: NDArray[np.bool_]) -> _Typed:
    """Those with an anchor that has not failed, or with none at all."""
    goes = one.anchors.go(failed)[one.kept]
    return replace(one, kept=one.kept[goes], values=one.values.filter(pa.array(goes)))


def _departure(one: _Typed, lineage: Lineage, seeds: Ids) -> Departure:
    output = one.task_output
    child = child_lineage(lineage, seeds, one.anchors, output.target, output.bolt)
    if one.kept.size < len(one.anchors.counts):
        child = select(child, one.kept)
    return Departure(stream=output.stream, target=output.target, values=one.values, lineage=child)


def _typed(record: Record, task_output: TaskOutput) -> _Typed:
    anchors = task_output.anchors()
    try:
        values = task_output.schema.batch(task_output.values)
    except SchemaError:
        bad = _bad(task_output)
    else:
        return _Typed(
            task_output=task_output,
            anchors=anchors,
            kept=np.arange(len(task_output.values)),
            values=values,
        )
    owner = np.repeat(np.arange(len(anchors.counts)), anchors.counts)
    by_row = {tup.row: tup for tup in record.tuples}
    for emission, error in bad.items():
        reason = f"stream {task_output.stream!r}: {error}"
        record.report(reason)
        for row in anchors.rows[owner == emission].tolist():
            record.fail(by_row[row], reason)
    good = [emission for emission in range(len(task_output.values)) if emission not in bad]
    values = task_output.schema.batch([task_output.values[emission] for emission in good])
    return _Typed(
        task_output=task_output, anchors=anchors, kept=np.array(good, np.int64), values=values
    )


def _bad(task_output: TaskOutput) -> dict[int, str]:
    """The emissions whose values do not fit, each with the error."""
    bad = {}
    for emission, values in enumerate(task_output.values):
        try:
            task_output.schema.check(values)
        except SchemaError as error:
            bad[emission] = str(error).partition("\n")[0]
    return bad

"""The groupings over a whole record batch: the same tasks that they choose tuple by tuple,
without a Python loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.ids import mix_array
from tiercel.acker.inbox.chunk import Rows
from tiercel.acker.ledger import Ids
from tiercel.queues.values.python_values import python_values
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.topology.grouping import (
    AllTasks,
    Fields,
    Global,
    Grouping,
    PartialKey,
    Shuffle,
    Stream,
    key_hash,
)

# Tasks up to which looking for each is faster than sorting.
_FEW = 4
# (rows of the stream's types, the identity of each) to the tasks that receive any, with the numbers
# of their rows in order.
ChooseBatch = Callable[[pa.RecordBatch, Ids], dict[int, Rows]]


@singledispatch
def batch_chooser(grouping: Grouping, stream: Stream) -> ChooseBatch:
    """The choice of one emitting task.

    A grouping that is not known here, such as a custom one, is asked row by row.
    """
    choose = grouping.chooser(stream)

    def choose_all(batch: pa.RecordBatch, identities: Ids) -> dict[int, Rows]:
        chosen: dict[int, list[int]] = {}
        tuples = zip(*[python_values(column) for column in batch.columns], strict=True)
        for row, (values, identity) in enumerate(zip(tuples, identities.tolist(), strict=True)):
            for task in choose(values, identity):
                chosen.setdefault(task, []).append(row)
        return {task: np.array(rows, np.int64) for task, rows in chosen.items()}

    return choose_all


@batch_chooser.register
def _(grouping: Shuffle, stream: Stream) -> ChooseBatch:
    receivers = grouping.among(stream)
    if len(receivers) == 1:
        return lambda batch, _identities: {receivers[0]: np.arange(batch.num_rows)}
    count = np.uint64(len(receivers))
    return lambda _batch, identities: _split((identities >> np.uint64(32)) % count, receivers)


@batch_chooser.register
def _(grouping: Fields, stream: Stream) -> ChooseBatch:
    hashes_of = _batch_hash(stream.schema, grouping.fields)
    count = np.uint64(len(stream.tasks))
    return lambda batch, _identities: _split(hashes_of(batch) % count, stream.tasks)


@batch_chooser.register
def _(grouping: PartialKey, stream: Stream) -> ChooseBatch:
    hashes_of = _batch_hash(stream.schema, grouping.fields)
    count = np.uint64(len(stream.tasks))
    others = np.uint64(max(len(stream.tasks) - 1, 1))

    def choose(batch: pa.RecordBatch, identities: Ids) -> dict[int, Rows]:
        hashes = hashes_of(batch)
        first = hashes % count
        second = (first + np.uint64(1) + mix_array(hashes) % others) % count
        return _split(np.where(identities & np.uint64(1) == 1, first, second), stream.tasks)

    return choose


@batch_chooser.register
def _(_grouping: AllTasks, stream: Stream) -> ChooseBatch:
    return lambda batch, _identities: {task: np.arange(batch.num_rows) for task in stream.tasks}


@batch_chooser.register
def _(_grouping: Global, stream: Stream) -> ChooseBatch:
    lowest = min(stream.tasks)
    return lambda batch, _identities: {lowest: np.arange(batch.num_rows)}


def rows_by_task(tasks: NDArray[np.int64]) -> dict[int, Rows]:
    """Each number in ``tasks`` with the places where it stands."""
    known, numbers = np.unique(tasks, return_inverse=True)
    return _split(numbers.astype(np.uint64), known.tolist())


def _split(numbers: Ids, tasks: Sequence[int]) -> dict[int, Rows]:
    """Row i goes to ``tasks[numbers[i]]``."""
    if not len(numbers):
        return {}
    if len(tasks) == 1:
        return {tasks[0]: np.arange(len(numbers))}
    if len(tasks) <= _FEW:
        few = numbers.astype(np.uint8)
        places = [np.flatnonzero(few == number) for number in range(len(tasks))]
        return {task: rows for task, rows in zip(tasks, places, strict=True) if len(rows)}
    # numpy sorts 16 bits by radix, in a tenth of the time.
    small = numbers.astype(np.uint16 if len(tasks) < 1 << 16 else np.int64)
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(np.bincount(small, minlength=len(tasks)))
    parts = np.split(order, ends[:-1])
    return {task: rows for task, rows in zip(tasks, parts, strict=True) if len(rows)}


def _batch_hash(schema: Schema, fields: Sequence[str]) -> Callable[[pa.RecordBatch], Ids]:
    """``key_hash`` of every row; computed once per distinct key."""
    columns = [schema.position(field) for field in fields]
    hash_of = key_hash(Schema(tuple(schema.fields[column] for column in columns)), fields)

    def hashes(batch: pa.RecordBatch) -> Ids:
        codes, keys = _distinct([batch.column(column) for column in columns])
        found: Ids = np.fromiter(map(hash_of, keys), np.uint64, len(keys))[codes]
        return found

    return hashes


def _distinct(columns: Sequence[pa.Array]) -> tuple[Rows, Sequence[Sequence[Any]]]:
    """The distinct rows, and which of them each row is."""
    codes, values = _encode(columns[0])
    keys: list[tuple[Any, ...]] = [(value,) for value in values]
    for column in columns[1:]:
        more, values = _encode(column)
        pairs = pa.array(codes * max(len(values), 1) + more).dictionary_encode()
        codes = pairs.indices.to_numpy().astype(np.int64)
        keys = [
            (*keys[pair // len(values)], values[pair % len(values)])
            for pair in pairs.dictionary.to_pylist()
        ]
    return codes, keys


def _encode(column: pa.Array) -> tuple[Rows, list[Any]]:
    if pa.types.is_list(column.type):  # Arrow has no dictionaries of lists
        return np.arange(len(column)), column.to_pylist()
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()

"""Rows on their way to a task: Arrow's stream format, inside of Spark's input partition.

They travel by the driver's JVM, which hands them out with the tasks. A task that is repeated, and a
batch that is read twice, see the same messages, and executors need no way to the reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

# Spark refuses tasks of more than 128 MiB, and is quicker with much smaller ones.
_SLICE_BYTES = 4 * 1024 * 1024


class Slice(InputPartition):
    """Some rows of a batch."""

    def __init__(self, rows: bytes) -> None:
        super().__init__(rows)

    def __repr__(self) -> str:
        return f"Slice({len(self.value)} bytes)"


def cut(rows: pa.RecordBatch, pieces: int) -> list[bytes]:
    """Return the rows in about this many pieces, or in more where these would be large."""
    if not rows.num_rows:
        return []
    pieces = max(pieces, math.ceil(rows.nbytes / _SLICE_BYTES))
    step = math.ceil(rows.num_rows / pieces)
    return [
        _written(piece)
        for at in range(0, rows.num_rows, step)
        for piece in _halved(rows.slice(at, step))
    ]


def _halved(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return the rows in pieces that are not much too large: large bodies may lie side by side
    among many small ones.
    """
    if rows.num_rows == 1 or rows.nbytes <= 2 * _SLICE_BYTES:
        yield rows
        return
    middle = rows.num_rows // 2
    yield from _halved(rows.slice(0, middle))
    yield from _halved(rows.slice(middle))


def rows_of(piece: Slice) -> Iterator[pa.RecordBatch]:
    """Return the rows, in a task."""
    with pa.ipc.open_stream(pa.py_buffer(piece.value)) as reader:
        yield from reader


def _written(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())

"""Chunks whose tuples have keys, from any writer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.acker.errors import BadChunkError
from tiercel.acker.ids import LANES
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, decode, encode

ROUTE = Route(component="a", stream="default", source_task=1, target_task=2)


def chunk_of(count: int, *, keyed: bool = True) -> Chunk:
    ids = np.arange(1, count + 1, dtype=np.uint64)
    keys = np.arange(count * LANES, dtype=np.uint64).reshape(-1, LANES) << np.uint64(40)
    return Chunk(
        route=ROUTE,
        values=pa.RecordBatch.from_pydict(
            {"word": pa.array([f"w{n}" for n in range(count)], pa.string())}
        ),
        lineage=Lineage(
            offsets=np.arange(count + 1, dtype=np.int32),
            roots=ids,
            edges=ids * np.uint64(3),
            keys=keys if keyed else None,
        ),
    )


@given(st.integers(0, 40))
def test_keys_come_back_as_they_were(count) -> None:
    sent = chunk_of(count)
    found = decode(encode(sent))
    assert found.values.equals(sent.values)
    assert found.lineage.keys is not None
    assert found.lineage.keys.tolist() == sent.lineage.keys.tolist()
    assert found.lineage.roots.tolist() == sent.lineage.roots.tolist()


def test_without_keys_there_is_no_column_for_them() -> None:
    plain = encode(chunk_of(5, keyed=False))
    assert b"__keys" not in plain
    assert decode(plain).lineage.keys is None
    assert len(encode(chunk_of(5))) - len(plain) < 5 * 24 + 300


def column(type_: pa.DataType, values: list) -> bytes:
    """Return a chunk whose key column has another type, or has missing keys."""
    whole = pa.ipc.open_stream(encode(chunk_of(2)))
    batch = whole.read_next_batch()
    at = batch.schema.get_field_index("__keys")
    changed = batch.schema.set(at, pa.field("__keys", type_))
    columns = [*batch.columns[:at], pa.array(values, type_), *batch.columns[at + 1 :]]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changed) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=changed))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.binary(16), [b"k" * 16] * 2),
        (pa.binary(), [b"k" * 24] * 2),
        (pa.int64(), [1, 2]),
        (pa.binary(24), [b"k" * 24, None]),
    ],
)
def test_keys_of_another_kind_or_missing_ones_are_refused(type_, values) -> None:
    with pytest.raises(BadChunkError):
        decode(column(type_, values))


@given(st.data())
def test_damaged_keys_are_refused_or_are_keys(data) -> None:
    payload = bytearray(encode(chunk_of(6)))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:cut])):
        with suppress(BadChunkError):
            found = decode(damaged)
            keys = found.lineage.keys
            assert keys is None or keys.shape == (found.values.num_rows, LANES)
            assert encode(replace(found, route=ROUTE))

"""A chunk is read as it was written or refused as a whole; no byte beyond it is ever read."""

from __future__ import annotations

import datetime as dt
import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tiercel.acker.errors import BadChunkError
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, decode, encode
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.tuples import tuples_of

ROUTE = Route(component="s", stream="default", source_task=1, target_task=2)
EVERY_TYPE = Schema.parse(
    "a string, b binary, c boolean, d byte, e short, f int, g long, h float, i double, j date, k "
    "timestamp, l timestamp_ntz, m decimal(10,2), n array<string>, o array<array<long>>, p "
    "array<boolean>, q map<string,string>, "
    "r array<struct<a: string, b: array<date>, c: struct<d: long>>>"
)
WHEN = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - a timestamp_ntz
ROW = [
    "ä", b"\xff", True, -1, 2, 3, 2**62, 0.5, 0.25, WHEN.date(), WHEN.replace(tzinfo=dt.UTC),
    WHEN, Decimal("1.23"), ["x", None], [[1], [], None], [True, False],
    {"ä": "b", "none": None, "": ""}, [{"a": "x", "b": [WHEN.date()], "c": None}, None],
]  # fmt: skip
IDS = pa.array([[1]], pa.list_(pa.uint64()))
ID = pa.array([1], pa.uint64())
HEAD = {b"tiercel": b"1\n2\ns\ndefault"}


def lineage(*counts: int) -> Lineage:
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    ids = np.arange(offsets[-1], dtype=np.uint64)
    return Lineage(offsets=offsets, roots=ids, edges=ids + np.uint64(7))


def written(rows, *counts: int, schema: Schema = EVERY_TYPE) -> bytes:
    return encode(Chunk(route=ROUTE, values=schema.batch(rows), lineage=lineage(*counts)))


def ipc(*columns, names=("a", "__roots", "__edges"), head=HEAD, **options) -> bytes:
    batch = pa.RecordBatch.from_arrays(list(columns), names=list(names)).replace_schema_metadata(
        head
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def patched(before: bytes, after: bytes) -> bytes:
    """Return a chunk of three bodies with the bytes ``before`` in its offsets replaced by
    ``after``.
    """
    rows = [[b"MARKMARK"], [None], [b"MARK"]]
    payload = written(rows, 1, 1, 1, schema=Schema.parse("body binary"))
    assert payload.count(before) == 1
    return payload.replace(before, after)


def offsets(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


@pytest.mark.parametrize("counts", [(), (1,), (1, 1, 1), (0, 2, 1)])
def test_what_was_written_is_read(counts):
    rows = [ROW, [None] * len(ROW), ROW][: len(counts)]
    found = decode(written(rows, *counts))
    assert found.route == ROUTE
    assert found.values == EVERY_TYPE.batch(rows)
    assert found.values.schema == EVERY_TYPE.arrow
    for name in ("offsets", "roots", "edges"):
        assert np.array_equal(getattr(found.lineage, name), getattr(lineage(*counts), name))


def test_tuples_of_one_tree_each_take_the_bytes_of_their_ids_alone():
    schema = Schema.parse("n long")
    sizes = [
        len(written([[1]] * 1_000, *counts, schema=schema))
        for counts in ([1] * 1_000, [0, 2, *[1] * 998])
    ]
    assert 24_000 <= sizes[0] < 25_000
    # An offset of four bytes for each list, twice.
    assert sizes[1] - sizes[0] >= 8_000


def test_a_part_of_a_larger_batch_is_written_as_if_it_were_alone():
    whole = EVERY_TYPE.batch([ROW] * 5)
    found = decode(encode(Chunk(route=ROUTE, values=whole.slice(2, 2), lineage=lineage(1, 2))))
    assert found.values == EVERY_TYPE.batch([ROW] * 2)


def with_pairs(*pairs: tuple[str | None, str | None] | None) -> bytes:
    """Return a chunk of one tuple with a map of these pairs, which pyarrow would not build."""
    maps = pa.map_(pa.string(), pa.string())
    kind = pa.struct([maps.key_field, maps.item_field])
    entries = [
        None if pair is None else dict(zip(("key", "value"), pair, strict=True)) for pair in pairs
    ]
    column = pa.array([entries], pa.list_(kind))
    fields = [pa.field(name, IDS.type) for name in ("__roots", "__edges")]
    batch = pa.RecordBatch.from_arrays([column, IDS, IDS], names=["a", "__roots", "__edges"])
    schema = pa.schema([pa.field("a", maps), *fields], metadata=HEAD)
    end = struct.pack("<Ii", 0xFFFFFFFF, 0)
    return schema.serialize().to_pybytes() + batch.serialize().to_pybytes() + end


TORN = {
    "nothing": b"",
    "noise": b"\xff" * 50,
    "one column": ipc(pa.array([1]), names=["a"]),
    "no lists": ipc(pa.array([1]), pa.array([1]), pa.array([1])),
    "trees that are texts": ipc(pa.array([1]), pa.array([["x"]]), pa.array([["x"]])),
    "trees that are signed": ipc(pa.array([1]), *[pa.array([[-1]], pa.list_(pa.int64()))] * 2),
    "a tree that is missing": ipc(pa.array([1]), pa.array([[None]], pa.list_(pa.uint64())), IDS),
    "an id that is missing": ipc(pa.array([1]), pa.array([None], pa.uint64()), ID),
    "a list of trees beside one edge": ipc(pa.array([1]), IDS, ID),
    "no list for a tuple": ipc(pa.array([1]), pa.array([None], pa.list_(pa.uint64())), IDS),
    "more trees than edges": ipc(pa.array([1]), pa.array([[1, 2]], pa.list_(pa.uint64())), IDS),
    "other names": ipc(pa.array([1]), IDS, IDS, names=["a", "b", "c"]),
    "no route": ipc(pa.array([1]), IDS, IDS, head=None),
    "half a route": ipc(pa.array([1]), IDS, IDS, head={b"tiercel": b"1\n2"}),
    "tasks that are no numbers": ipc(pa.array([1]), IDS, IDS, head={b"tiercel": b"x\ny\nz\nw"}),
    "a route that is no text": ipc(pa.array([1]), IDS, IDS, head={b"tiercel": b"1\n2\n\xff\nw"}),
    "the heading alone": ipc(pa.array([1]), IDS, IDS)[:300],
    "an offset beyond the bytes": patched(offsets(0, 8, 8, 12), offsets(0, 40_000, 8, 12)),
    "an offset far beyond the bytes": patched(
        offsets(0, 8, 8, 12), offsets(0, 2_000_000_000, 8, 12)
    ),
    "offsets that go back": patched(offsets(0, 8, 8, 12), offsets(0, 8, 4, 12)),
    "an offset before the bytes": patched(offsets(0, 8, 8, 12), offsets(-8, 8, 8, 12)),
    "a text that is none": written([["MARK"]], 1, schema=Schema.parse("a string")).replace(
        b"MARK", b"\xff\xff\xff\xff"
    ),
    "a key that is null": with_pairs((None, "b")),
    "a pair that is null": with_pairs(("a", "b"), None),
    "a list of maps": ipc(
        pa.array([[{"a": "b"}]], pa.list_(pa.map_(pa.string(), pa.string()))), IDS, IDS
    ),
    "a struct without members": ipc(pa.array([{}], pa.struct([])), IDS, IDS),
    "a list of structs without members": ipc(pa.array([[{}]], pa.list_(pa.struct([]))), IDS, IDS),
    "a struct of values without bytes": ipc(pa.array([{"a": None}]), IDS, IDS),
    "a struct with two members of one name": ipc(
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), IDS, IDS
    ),
    "a map in a struct": ipc(
        pa.array([{"m": {"a": "b"}}], pa.struct([("m", pa.map_(pa.string(), pa.string()))])),
        *(IDS, IDS),
    ),
    "the year 300,000 in a struct": ipc(
        pa.StructArray.from_arrays([pa.array([2**63 - 1]).cast(pa.timestamp("us"))], names=["a"]),
        *(IDS, IDS),
    ),
    "values without bytes": ipc(pa.nulls(1), IDS, IDS),
    "one text for many": ipc(pa.array(["x" * 100], pa.string_view()), IDS, IDS),
    "a dictionary": ipc(pa.array(["x"]).dictionary_encode(), IDS, IDS),
    "the year 300,000": ipc(
        pa.array([[None, 2**63 - 1]]).cast(pa.list_(pa.timestamp("us"))), IDS, IDS
    ),
    "a day before the year 1": ipc(pa.array([-800_000], pa.int32()).cast(pa.date32()), IDS, IDS),
    "a decimal with 100 zeros": ipc(pa.array([None], pa.decimal128(5, -100)), IDS, IDS),
    "a time zone of its own": ipc(pa.array([1], pa.timestamp("us", tz="Mars/Olympus")), IDS, IDS),
    "half a float": ipc(pa.array([np.float16(1)]), IDS, IDS),
    "lists without bytes": ipc(pa.array([[None]], pa.list_(pa.null())), IDS, IDS),
    "a list of fixed length": ipc(pa.array([[]], pa.list_(pa.int64(), 0)), IDS, IDS),
    "an old format": ipc(pa.array([1]), IDS, IDS, metadata_version=pa.ipc.MetadataVersion.V4),
    "zstd": ipc(pa.array(["x" * 10_000]), IDS, IDS, compression="zstd"),
    "lz4": ipc(pa.array(["x" * 10_000]), IDS, IDS, compression="lz4"),
}


@pytest.mark.parametrize("payload", TORN.values(), ids=TORN)
def test_bytes_that_are_no_chunk_are_one_error_in_one_line(payload):
    with pytest.raises(BadChunkError, match="not a chunk of tuples: ") as caught:
        decode(payload)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_numbers_of_values_beyond_the_bytes_are_refused():
    payload = written([["MARK"], ["MARK"]], 1, 1, schema=Schema.parse("a string"))
    node = struct.pack("<qq", 2, 0)
    at = -1
    tried = 0
    while (at := payload.find(node, at + 1)) >= 0:
        for count in (3, 1 << 33, -1, (1 << 63) - 1):
            tried += 1
            with pytest.raises(BadChunkError):
                decode(payload[:at] + struct.pack("<q", count) + payload[at + 8 :])
    assert tried >= 12


def test_a_bomb_is_refused_before_it_is_unpacked():
    bomb = ipc(pa.array([b"\0" * (1 << 26)]), IDS, IDS, compression="zstd")
    assert len(bomb) < 10_000
    before = pa.total_allocated_bytes()
    with pytest.raises(BadChunkError, match="compressed"):
        decode(bomb)
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_every_cut_is_refused():
    payload = written([ROW], 1)
    whole = payload.rindex(b"\xff\xff\xff\xff\0\0\0\0")  # the end mark may be missing
    for end in range(0, whole, 3):
        with pytest.raises(BadChunkError):
            decode(payload[:end])


def test_whatever_byte_is_changed_it_is_read_safely_or_refused():
    drawn = random.Random(11)
    payloads = [
        written([ROW, ROW], 1, 2),
        written([["MARK"], [None]], 0, 1, schema=Schema.parse("a string")),
    ]
    refused = 0
    for _ in range(4_000):
        changed = bytearray(drawn.choice(payloads))
        for _ in range(drawn.choice((1, 1, 1, 2, 8))):
            changed[drawn.randrange(len(changed))] = drawn.choice(
                (0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256))
            )
        try:
            found = decode(bytes(changed))
        except BadChunkError:
            refused += 1
            continue
        assert len(found.lineage.offsets) == found.values.num_rows + 1
        assert len(tuples_of(found)) == found.values.num_rows
    assert 500 < refused < 4_000


def test_a_map_is_a_dictionary_in_a_tuple():
    schema = Schema.parse("h map<string,string>")
    rows = [[{"a": "b", "c": None}], [None], [{}]]
    found = tuples_of(decode(written(rows, 1, 1, 1, schema=schema)))
    assert [tup["h"] for tup in found] == [row[0] for row in rows]


def test_of_a_name_that_stands_twice_in_a_map_the_last_one_counts():
    [tup] = tuples_of(decode(with_pairs(("a", "1"), ("a", "2"))))
    assert tup["a"] == {"a": "2"}

"""Chunks: the tuples that one task emits to another task on one stream, as an Arrow record batch
with their ids; and the parcels in which chunks are sent.

On the wire (an entry of an inbox) a chunk is an Arrow IPC stream of one batch: the stream's typed
columns, then ``__keys`` (40 bytes each) if any tuple has a key, then ``__roots`` and ``__edges``
(parallel; uint64 if each tuple is in one tree, else list<uint64>), with the route in the schema's
metadata; behind it, if a tuple's trace is recorded, the contexts (contexts.py). Nothing is ever
unpickled.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha1
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tiercel.acker.errors import BadChunkError
from tiercel.acker.ids import LANES, is_line, seed_array
from tiercel.acker.inbox.contexts import Contexts, contexts_in, written_contexts

Rows = NDArray[np.int64]  # row numbers

# The columns after the stream's own, and the metadata key of the route.
_KEYS = "__keys"
_ROOTS = "__roots"
_EDGES = "__edges"
_ROUTE = b"tiercel"
_ID = pa.uint64()
_IDS, _KEY = pa.list_(_ID), pa.binary(8 * LANES)

# Bounds on one chunk in a line.
_SHARED_TUPLES, _SHARED_BYTES = 1_000, 64 * 1024

# The types of ``queues.values.schema`` without decimals, times, lists, structs and maps of strings:
# each value has bytes of its own.
_FLAT = {
    pa.string(),
    pa.binary(),
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
}
_DAYS = (-719_162, 2_932_896)  # since 1970, for Python's years 1 to 9999
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_TIMES = {
    pa.date32(): _DAYS,
    pa.timestamp("us"): _MICROSECONDS,
    pa.timestamp("us", tz="UTC"): _MICROSECONDS,
}
_LEAST_SCALE = -38  # the least scale that pyarrow converts to Python decimals
# Arrow crashes the process on a map with a null key, before the map can be checked. In a message a
# map has the same buffers as a list of pairs, so it is read and checked as such a list before it
# becomes a map.
_TEXTS = pa.map_(pa.string(), pa.string())
_PAIR = pa.struct([_TEXTS.key_field, _TEXTS.item_field])
_PAIRS = pa.list_(pa.field("entries", _PAIR, nullable=False))

# Arrow's framing of messages, and numbers in a FlatBuffer.
_FRAME = struct.Struct("<Ii")
_CONTINUES = 0xFFFFFFFF
_END = _FRAME.pack(_CONTINUES, 0)
_U16, _U32, _I32 = map(struct.Struct, ("<H", "<I", "<i"))
# Longer headings, of streams with thousands of columns, are not cached.
_CACHED_BYTES = 16 * 1024
# All errors that pyarrow, numpy and ``_is_compressed`` raise for damaged bytes; UnicodeDecodeError
# is a ValueError.
_DAMAGED = (
    pa.ArrowException,
    OSError,
    EOFError,
    StopIteration,
    struct.error,
    AttributeError,
    LookupError,
    OverflowError,
    TypeError,
    ValueError,
)
# Bounds on one parcel, so that no call is large and an inbox has room for several parcels.
PARCEL_BYTES = 4 * 1024 * 1024
PARCEL_TUPLES = 10_000
# Bound on all parcels that are appended together, to several inboxes.
TOGETHER_BYTES = 4 * PARCEL_BYTES
# Lua numbers are doubles: larger integers would be rounded.
LARGEST = 2**53 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Origin and target of a chunk; task ids are unique in the topology."""

    component: str
    stream: str
    source_task: int
    target_task: int


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The trees of n tuples: tuple i has the edges ``edges[offsets[i]:offsets[i+1]]`` in the trees
    ``roots`` of the same slice.

    A tuple without roots is not tracked. A slice may list a root twice: the edges of one root are
    XORed together.
    """

    # Shape (n + 1,).
    offsets: NDArray[np.int32]
    roots: NDArray[np.uint64]
    edges: NDArray[np.uint64]
    # Shape (n, LANES), zeros for a tuple without a key; None if no tuple has a key.
    keys: NDArray[np.uint64] | None = None
    contexts: Contexts | None = None  # of traces, by seed; None if no tuple here has one

    @cached_property
    def counts(self) -> NDArray[np.int32]:
        """Return the number of trees of each tuple; shape (n,)."""
        # np.diff takes ten times as long, and most steps are short.
        return self.offsets[1:] - self.offsets[:-1]

    @cached_property
    def seeds(self) -> NDArray[np.uint64]:
        """Return the identity of each tuple: the XOR of the seeds of its (root, edge) pairs, or 0
        if it is not tracked.
        """
        pairs = seed_array(self.roots, self.edges)
        if len(pairs) == len(self.counts) and self.counts.all():
            return pairs
        tracked = self.counts > 0
        seeds = np.zeros(len(tracked), np.uint64)
        if tracked.any():
            seeds[tracked] = np.bitwise_xor.reduceat(pairs, self.offsets[:-1][tracked])
        return seeds

    def slice(self, first: int, end: int) -> Lineage:
        """Return the lineage of the tuples from ``first`` to before ``end``."""
        start, stop = self.offsets[first], self.offsets[end]
        return Lineage(
            offsets=self.offsets[first : end + 1] - start,
            roots=self.roots[start:stop],
            edges=self.edges[start:stop],
            keys=None if self.keys is None else self.keys[first:end],
            contexts=self.contexts,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """n tuples on one route."""

    route: Route
    # The stream's typed columns, n rows.
    values: pa.RecordBatch
    lineage: Lineage


def encode(chunk: Chunk) -> bytes:
    """Write a chunk as an Arrow IPC stream."""
    lineage = chunk.lineage
    keys = lineage.keys
    single = len(lineage.roots) == len(lineage.counts) and bool(lineage.counts.all())
    schema, beginning = _written_heading(chunk.route, chunk.values.schema, keys is not None, single)
    offsets = None if single else lineage.offsets
    ids = [_written_ids(offsets, array) for array in (lineage.roots, lineage.edges)]
    if keys is not None:
        buffer = pa.py_buffer(keys.astype("<u8").tobytes())
        ids.insert(0, pa.Array.from_buffers(_KEY, len(keys), [None, buffer]))
    batch = pa.RecordBatch.from_arrays([*chunk.values.columns, *ids], schema=schema)
    contexts = lineage.contexts
    behind = b"" if contexts is None else written_contexts(contexts, lineage.seeds)
    return b"".join((beginning, batch.serialize(), _END, behind))


def _written_ids(offsets: NDArray[np.int32] | None, ids: NDArray[np.uint64]) -> pa.Array:
    # Made of their buffers: ``pa.array`` takes three times as long for a few ids.
    values = pa.Array.from_buffers(_ID, len(ids), [None, pa.py_buffer(ids)])
    if offsets is None:
        return values
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_IDS, len(offsets) - 1, buffers, children=[values])


def encode_parts(chunk: Chunk) -> list[tuple[bytes, int]]:
    """Encode a chunk in parts of bounded size, each as a payload with its number of tuples.

    The same chunk is always split the same way. The bounds are smaller in a line, where each task
    that claims some tuples of a part copies the whole part.
    """
    rows = chunk.values.num_rows
    ids = 2 * chunk.lineage.roots.nbytes
    shared = is_line(chunk.route.target_task)
    most, most_bytes = (_SHARED_TUPLES, _SHARED_BYTES) if shared else (PARCEL_TUPLES, PARCEL_BYTES)
    if rows < 2 or (rows <= most and chunk.values.nbytes + ids <= most_bytes):
        return [(encode(chunk), rows)]
    middle = rows // 2
    return [
        part
        for first, end in ((0, middle), (middle, rows))
        for part in encode_parts(
            Chunk(
                route=chunk.route,
                values=chunk.values.slice(first, end - first),
                lineage=chunk.lineage.slice(first, end),
            )
        )
    ]


@lru_cache(maxsize=1024)
def _written_heading(
    route: Route, values: pa.Schema, keyed: bool, single: bool
) -> tuple[pa.Schema, bytes]:
    """Return the schema of chunks on one route, and its message; ``single``: each tuple is in one
    tree.

    Cached, because writing the message is half the cost of a small chunk.
    """
    names = f"{route.source_task}\n{route.target_task}\n{route.component}\n{route.stream}"
    ids = [pa.field(_KEYS, _KEY)] if keyed else []
    ids += [pa.field(name, _ID if single else _IDS) for name in (_ROOTS, _EDGES)]
    schema = pa.schema([*values, *ids], metadata={_ROUTE: names.encode()})
    return schema, schema.serialize().to_pybytes()


def decode(payload: bytes) -> Chunk:
    """Read a chunk that ``encode`` wrote; raises BadChunkError for anything else.

    Safe for a payload from any writer, and the chunk is safe to read. Arrow itself trusts offsets
    and lengths, and would read beyond a buffer later; here all of them are checked. Compressed
    bodies are refused, and so are types that expand to more values than they have bytes, so that
    memory use is proportional to the payload.
    """
    try:
        heading, at = _heading_of(payload)
        batch = _batch(payload, at, heading.schema)
        columns = batch.columns
        for column in heading.maps:
            columns[column] = _as_map(columns[column])
        for column in heading.times:
            _check_times(columns[column])
        width = len(heading.values)
        contexts = None if payload.endswith(_END) else contexts_in(payload)
        return Chunk(
            route=heading.route,
            values=pa.RecordBatch.from_arrays(columns[:width], schema=heading.values),
            lineage=_lineage(*columns[width:], contexts=contexts),
        )
    except _DAMAGED as error:
        why = str(error).partition("\n")[0][:200] or type(error).__name__
        raise BadChunkError(f"not a chunk of tuples: {why}") from error


@dataclass(frozen=True, slots=True)
class _Heading:
    """The first message of a payload."""

    # The schema with which the batch is read.
    schema: pa.Schema
    # The schema of the stream's columns, without the ids.
    values: pa.Schema
    # The columns that hold maps.
    maps: list[int]
    # The columns that have dates or times in them.
    times: list[int]
    route: Route


def _heading_of(payload: bytes) -> tuple[_Heading, int]:
    """Read the heading; return it and the offset of its end."""
    mark, length = _FRAME.unpack_from(payload)
    end = _FRAME.size + length
    if mark != _CONTINUES or not 0 < length <= len(payload) - _FRAME.size:
        raise BadChunkError("it does not begin like one")
    head = payload[:end]
    return (_heading(head) if length <= _CACHED_BYTES else _heading.__wrapped__(head)), end


@lru_cache(maxsize=1024)
def _heading(head: bytes) -> _Heading:
    """Read a schema message; cached, because all chunks on a route begin with the same bytes."""
    schema = pa.ipc.read_schema(pa.py_buffer(head))
    fields = list(schema)
    keyed = len(fields) > 2 and fields[-3].name == _KEYS
    if keyed and fields[-3].type != _KEY:
        raise BadChunkError(f"its keys are of the type {str(fields[-3].type)[:50]}")
    values = fields[: -3 if keyed else -2]
    leaves = [_leaves_of(column.type) for column in values]
    for column, types in zip(values, leaves, strict=True):
        if column.type != _TEXTS and not all(map(_is_plain, types)):
            raise BadChunkError(
                f"column {column.name[:50]!r} is a {str(column.type)[:50]}, which no stream has"
            )
    if [field.name for field in fields[-2:]] != [_ROOTS, _EDGES] or {
        field.type for field in fields[-2:]
    } not in ({_ID}, {_IDS}):
        raise BadChunkError("its last columns are not the ids of trees and edges")
    source, target, component, stream = schema.metadata[_ROUTE].decode().split("\n")
    route = Route(
        component=component, stream=stream, source_task=int(source), target_task=int(target)
    )
    times = [at for at, types in enumerate(leaves) if any(each in _TIMES for each in types)]
    maps = [column for column, field in enumerate(fields) if field.type == _TEXTS]
    # Maps are read as lists of pairs, see ``_PAIRS``.
    paired = schema
    for column in maps:
        paired = paired.set(column, fields[column].with_type(_PAIRS))
    return _Heading(paired, pa.schema(values), maps, times, route)


def _leaves_of(type_: pa.DataType) -> list[pa.DataType]:
    """Return the types in lists and structs. Structs that Python cannot read, or that need no
    bytes, are among them: two members have one name, or there is none.
    """
    while type_.id == _IDS.id:
        type_ = type_.value_type
    if not pa.types.is_struct(type_) or not 0 < len({*type_.names}) == len(type_.names):
        return [type_]
    return [leaf for member in type_ for leaf in _leaves_of(member.type)]


def _is_plain(type_: pa.DataType) -> bool:
    """Return True for a type whose values have bytes of their own."""
    if pa.types.is_decimal128(type_):
        return bool(_LEAST_SCALE <= type_.scale <= type_.precision)
    return type_ in _FLAT or type_ in _TIMES


def _batch(payload: bytes, at: int, schema: pa.Schema) -> pa.RecordBatch:
    """Read the record batch, and check it completely."""
    message = pa.ipc.read_message(pa.py_buffer(payload)[at:])
    if message.type != "record batch" or message.metadata_version != pa.ipc.MetadataVersion.V5:
        raise BadChunkError(
            f"a {message.type} of Arrow's format {message.metadata_version} where its rows should "
            "be"
        )
    if _is_compressed(message.metadata):
        raise BadChunkError("its body is compressed")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Return True if the message's metadata names a compression: pyarrow would decompress the
    body, however large it becomes.

    The metadata is a FlatBuffer. A table begins with the distance to its vtable, which has its own
    size, the table's size, and the offsets of the table's fields, 0 for an absent field. The third
    field of a message is its record batch, whose fourth field is the compression.
    """
    head = memoryview(metadata)
    (message,) = _U32.unpack_from(head)
    place = _place(head, message, 2)
    (distance,) = _U32.unpack_from(head, place)
    return _place(head, place + distance, 3) != 0


def _place(head: memoryview, table: int, field: int) -> int:
    """Return the offset of a table's field; 0 if the field is absent."""
    (distance,) = _I32.unpack_from(head, table)
    directory = table - distance
    (length,) = _U16.unpack_from(head, directory)
    at = 4 + 2 * field
    if at >= length:
        return 0
    (offset,) = _U16.unpack_from(head, directory + at)
    return table + offset if offset else 0


def _as_map(pairs: pa.Array) -> pa.Array:
    """Convert validated pairs to a map; raises BadChunkError for a null key."""
    entries = pairs.values
    if entries.null_count or entries.field(0).null_count:
        raise BadChunkError("a map in it has a key that is null")
    return pa.Array.from_buffers(_TEXTS, len(pairs), pairs.buffers()[:2], children=[entries])


def _check_times(column: pa.Array) -> None:
    """Raise BadChunkError for a year that Python does not support."""
    while column.type.id == _IDS.id:
        column = column.flatten()
    type_ = column.type
    if pa.types.is_struct(type_):
        for member in column.flatten():
            _check_times(member)
    if type_ not in _TIMES:
        return
    first, last = _TIMES[type_]
    ends = pc.min_max(column.view(pa.int32() if type_ == pa.date32() else pa.int64()))
    if ends["min"].is_valid and not first <= ends["min"].as_py() <= ends["max"].as_py() <= last:
        raise BadChunkError(f"a {type_} is not within the years 1 to 9999")


def _lineage(*columns: pa.Array, contexts: Contexts | None) -> Lineage:
    *keys, roots, edges = columns
    offsets, root_ids = _ids(roots)
    others, edge_ids = _ids(edges)
    if offsets.tobytes() != others.tobytes():
        raise BadChunkError("it has not one edge for each root")
    if len(roots) and (offsets[0] != 0 or not offsets[-1] == len(root_ids) == len(edge_ids)):
        raise BadChunkError("it has ids that belong to none of its tuples")
    return Lineage(
        offsets=offsets,
        roots=root_ids,
        edges=edge_ids,
        keys=_keys(keys[0]) if keys else None,
        contexts=contexts,
    )


def _ids(column: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Return the offsets and the values of a column of ids."""
    values = column if column.type == _ID else column.values
    if column.null_count or values.null_count:
        raise BadChunkError("an id of its trees and edges is missing")
    ids = np.frombuffer(values.buffers()[1] or b"", "<u8", len(values))
    if values is column:
        return np.arange(len(ids) + 1, dtype=np.int32), ids
    offsets = column.buffers()[1]
    count = len(column) + 1 if offsets is not None and offsets.size else 0
    return np.frombuffer(offsets or b"", "<i4", count), ids


def _keys(column: pa.Array) -> NDArray[np.uint64]:
    if column.null_count:
        raise BadChunkError("a key of its tuples is missing")
    values = column.buffers()[1] if len(column) else b""
    return np.frombuffer(values, "<u8", LANES * len(column)).reshape(-1, LANES)


class Appended(enum.Enum):
    """Result of one append to one inbox."""

    DONE = "done"
    # The inbox has this part already, with the same content: nothing was appended.
    REPEATED = "repeated"
    # The inbox has this part already, with different content: nothing was appended. The sender's
    # step did different work when it was repeated, so its roots must be failed.
    DIFFERENT = "different"
    # The inbox has no room now: repeat the call later.
    FULL = "full"
    # The inbox belongs to another run, or a newer attempt of the sender has fenced this one off.
    STALE = "stale"

    def __bool__(self) -> bool:
        """True if the append went well, see ``acker.effects.perform_in_turn``."""
        return self is Appended.DONE


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """The encoded chunks that one sender appends to one inbox in one call."""

    # Task id of the inbox, or the id of a line.
    target: int
    # At least one chunk; each becomes an entry.
    chunks: Sequence[bytes]
    # Number of tuples in each chunk.
    tuples: Sequence[int]
    # False on the edges that close a cycle: waiting for room there could deadlock.
    bounded: bool = True
    # Index among the parcels of one number for the inbox, from 0.
    part: int = 0
    # Digest of the content in 16 hexadecimal digits, to compare a repeat with.
    digest: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Processors compute SHA-1 faster than BLAKE2b; its weakness does not matter here.
        content = sha1(usedforsecurity=False)
        for chunk, tuples in zip(self.chunks, self.tuples, strict=False):
            content.update(b"%d %d " % (len(chunk), tuples))
            content.update(chunk)
        object.__setattr__(self, "digest", content.hexdigest()[:16])

    @property
    def bytes(self) -> int:
        """Total size of the chunks."""
        return sum([len(chunk) for chunk in self.chunks])


def parcels_of(
    target: int, chunks: Sequence[tuple[bytes, int]], *, bounded: bool = True
) -> list[Parcel]:
    """Pack chunks, each with its number of tuples, into parcels of bounded size.

    A chunk is never split: a chunk over the bounds gets a parcel of its own.
    """
    cuts = [0]
    size = tuples = 0
    for at, (chunk, count) in enumerate(chunks):
        size += len(chunk)
        tuples += count
        if at > cuts[-1] and (size > PARCEL_BYTES or tuples > PARCEL_TUPLES):
            cuts.append(at)
            size, tuples = len(chunk), count
    return [
        Parcel(
            target=target,
            chunks=[payload for payload, _ in chunks[first:end]],
            tuples=[count for _, count in chunks[first:end]],
            bounded=bounded,
            part=part,
        )
        for part, (first, end) in enumerate(pairwise([*cuts, len(chunks)]))
    ]


def next_parcels(parcels: Sequence[Parcel]) -> Sequence[Parcel]:
    """Return the parcels to append next, with a bounded total size and at most one per inbox,
    because an inbox must take a FULL part before the next one.
    """
    found: dict[int, Parcel] = {}
    size = 0
    for parcel in parcels:
        if parcel.target not in found:
            size += parcel.bytes
            if found and size > TOGETHER_BYTES:
                break
            found[parcel.target] = parcel
    return list(found.values())


def full_among(sent: Sequence[Parcel], verdicts: Iterable[Appended]) -> set[int]:
    """Return the targets that had no room."""
    replies = zip(sent, verdicts, strict=True)
    return {parcel.target for parcel, verdict in replies if verdict is Appended.FULL}


def parcels_left(
    parcels: Sequence[Parcel], sent: Sequence[Parcel], verdicts: Iterable[Appended]
) -> Sequence[Parcel]:
    """Return the parcels that are not appended yet, with parcels for full inboxes last, so that
    other parcels need not wait for them.
    """
    full = full_among(sent, verdicts)
    taken = {(one.target, one.part) for one in sent if one.target not in full}
    left = [one for one in parcels if (one.target, one.part) not in taken]
    return sorted(left, key=lambda one: one.target in full)


def check_append(number: int, parcels: Sequence[Parcel]) -> None:
    """Raise ValueError for a call that breaks the contract."""
    if not 0 < number <= LARGEST:
        raise ValueError(f"number {number} of an append is not between 1 and {LARGEST}")
    if len({parcel.target for parcel in parcels}) != len(parcels):
        raise ValueError("one append has two parcels for one inbox")
    for parcel in parcels:
        if not parcel.chunks or len(parcel.chunks) != len(parcel.tuples):
            counts = f"{len(parcel.chunks)} chunks with {len(parcel.tuples)} counts of tuples"
            raise ValueError(f"a parcel for the inbox of task {parcel.target} has {counts}")

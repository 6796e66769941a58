"""From a working copy to bytes and back: the attributes as a pickle, the held tuples as chunks.

A snapshot is a row of frames, each with its length before it: an empty one; the attributes; where
in the chunks each held tuple is; how many emissions each has anchored to it, and when its
``execute`` began; the roots of the tuples that only threads hold; then the chunks, which are safe
to read from any writer. Snapshots of versions before 0.1 lack the empty frame and the roots.

A signature stands before them: bytes of strangers are never unpickled. Where the bolt executes in
order, that order is a part of its own before both.
"""

from __future__ import annotations

import hmac
import io
import pickle
import secrets
import struct
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, decode, encode
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.bolts.bolt import StepBolt
from tiercel.spark_jobs.bolts.tuples import OPEN, Origin, Tuple, tuples_of
from tiercel.spark_jobs.emitting.fold import join_lineages, select
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import RAISED, reason_of

_FRAME = struct.Struct(">I")
_CHUNKS_FROM = 5
_SIGNATURE_BYTES = 32
# No snapshot of a copy begins so: that begins with its signature.
_ORDER_MARK = b"tiercel\0order\0\0\0"
_ORDER_LENGTH = struct.Struct(">I")
_HEAD_BYTES = len(_ORDER_MARK) + _ORDER_LENGTH.size
_PLACE = 8


_NO_TREES = join_lineages([])


@dataclass(kw_only=True, slots=True)
class Held:
    """The tuples that a bolt has neither acked nor failed, and their trees, in the same order."""

    tuples: list[Tuple] = field(default_factory=list)
    lineage: Lineage = _NO_TREES
    # Roots of tuples that only a thread reaches, no attribute: they are lost with the process.
    threads: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A snapshot, and the tuples found while it was made."""

    content: bytes
    held: Held
    # Attributes that cannot travel, and why.
    stuck: dict[str, str]


def pack(
    bolt: StepBolt, local: set[str], record: Record | None = None, lineage: Lineage | None = None
) -> Packed:
    """Take a snapshot of a copy, without its attributes ``local``, after the step that
    ``record`` is of.

    ``lineage`` is of all input of the step. A tuple is held if it is open and anything still refers
    to it, an attribute or a thread: nothing else can ever be acked. The record lets go of all open
    tuples. Raises what a user's pickling raises if it cannot be put down to single attributes.
    """
    attributes = {
        name: value
        for name, value in vars(bolt).items()
        if name not in local and name not in bolt.transient
    }
    stuck: dict[str, str] = {}
    try:
        pickled, tuples = _pickled(attributes, record)
    except RAISED:
        stuck = _stuck(attributes, record)
        pickled, tuples = _pickled(
            {name: value for name, value in attributes.items() if name not in stuck}, record
        )
    elsewhere = [] if record is None else _known_elsewhere(record, tuples)
    if lineage is None or not (tuples or elsewhere):
        content = b"".join(_framed([b"", pickled, b"", b"", b""]))
        return Packed(content=content, held=Held(), stuck=stuck)
    held = _held(tuples, lineage)
    unreached = _held(elsewhere, lineage)
    threads = np.unique(unreached.lineage.roots)
    frames = [b"", pickled, *_told_frames(held), threads.astype("<u8").tobytes()]
    both = Held(
        tuples=[*tuples, *elsewhere],
        lineage=join_lineages([held.lineage, unreached.lineage]),
        threads=threads.tolist(),
    )
    content = b"".join(_framed([*frames, *_chunk_frames(held)]))
    return Packed(content=content, held=both, stuck=stuck)


def _held(tuples: list[Tuple], lineage: Lineage) -> Held:
    rows = np.array([tup.row for tup in tuples], np.int64)
    return Held(tuples=tuples, lineage=select(lineage, rows))


def _known_elsewhere(record: Record, reached: Sequence[Tuple]) -> list[Tuple]:
    """The open tuples that no attribute reaches, and that something else refers to: a thread."""
    left = [tup for tup in record.tuples if tup.state == OPEN]
    if not left:
        return []
    record.give_up(left)
    there = frozenset(map(id, reached))
    known = [weakref.ref(tup) for tup in left if id(tup) not in there and not tup.is_tick]
    left.clear()
    return [tup for one in known if (tup := one()) is not None]


def unpack(bolt: StepBolt, content: bytes) -> Held:
    """Give a prepared copy the attributes of a snapshot; returns the tuples it holds.

    Only for bytes that we wrote.
    """
    pickled, places, told, threads, chunks = _opened(content)
    stored = [tup for chunk in chunks for tup in tuples_of(chunk)]
    tuples = [stored[place] for place in places.tolist()]
    for tup, (emitted, began_ns) in zip(tuples, told.tolist(), strict=True):
        tup.emitted = emitted
        tup.began_ns = began_ns
    lineage = select(join_lineages([chunk.lineage for chunk in chunks]), places)
    vars(bolt).update(_Unpickler(pickled, tuples).load())
    return Held(tuples=tuples, lineage=lineage, threads=threads.tolist())


def held_roots(content: bytes) -> list[int]:
    """The roots of the tuples that a snapshot tells of, each once.

    Unpickles nothing; raises ValueError for bytes that are no snapshot.
    """
    _, _, _, threads, chunks = _opened(content)
    roots: list[int] = np.unique(
        np.concatenate([threads, *(chunk.lineage.roots for chunk in chunks)])
    ).tolist()
    return roots


def thread_roots(content: bytes) -> list[int]:
    """The roots of the tuples that only threads of the process held, each once; as above."""
    roots: list[int] = _opened(content)[3].tolist()
    return roots


def _opened(
    content: bytes,
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64], Ids, list[Chunk]]:
    """The attributes, still pickled; and, checked, the places of the held tuples, facts about
    them, the roots that threads held, and the chunks.

    Raises ValueError (BadChunkError is one) for bytes that are no snapshot.
    """
    frames = _frames(content)
    if frames and frames[0]:
        frames[:0] = [b""]
        frames[4:4] = [b""]
    if len(frames) < _CHUNKS_FROM:
        raise ValueError("not a snapshot: it lacks parts")
    _, pickled, places, told, threads, *chunks = frames
    if len(threads) % _PLACE:
        raise ValueError("not a snapshot: its roots are cut off")
    if len(places) % _PLACE or len(told) != 2 * len(places):
        raise ValueError("not a snapshot: it does not say where its tuples are")
    found = np.frombuffer(places, "<i8")
    held = [decode(chunk) for chunk in chunks]
    if not np.array_equal(np.sort(found), np.arange(sum(chunk.values.num_rows for chunk in held))):
        raise ValueError("not a snapshot: it has other tuples than it says")
    return (
        pickled,
        found,
        np.frombuffer(told, "<i8").reshape(-1, 2),
        np.frombuffer(threads, "<u8").astype(np.uint64),
        held,
    )


def _by_origin(held: Held) -> dict[tuple[str, str, int], list[int]]:
    by_origin: dict[tuple[str, str, int], list[int]] = {}
    for position, tup in enumerate(held.tuples):
        by_origin.setdefault((tup.source_component, tup.source_stream, tup.source_task), []).append(
            position
        )
    return by_origin


def _told_frames(held: Held) -> Iterator[bytes]:
    order = np.array(
        [position for positions in _by_origin(held).values() for position in positions], np.int64
    )
    yield np.argsort(order).astype("<i8").tobytes()
    yield np.array([(tup.emitted, tup.began_ns) for tup in held.tuples], "<i8").tobytes()


def _chunk_frames(held: Held) -> Iterator[bytes]:
    for (component, stream, task), positions in _by_origin(held).items():
        route = Route(component=component, stream=stream, source_task=task, target_task=0)
        rows = [held.tuples[position].values for position in positions]
        values = _columns(rows, held.tuples[positions[0]].origin.schema)
        yield encode(
            Chunk(
                route=route,
                values=values,
                lineage=select(held.lineage, np.array(positions, np.int64)),
            )
        )


def _columns(rows: list[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[at] for row in rows], column.type) for at, column in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pickled(attributes: dict[str, Any], record: Record | None) -> tuple[bytes, list[Tuple]]:
    sink = io.BytesIO()
    pickler = _Pickler(sink, record)
    pickler.dump(attributes)
    return sink.getvalue(), pickler.held


def _stuck(attributes: dict[str, Any], record: Record | None) -> dict[str, str]:
    stuck = {}
    for name, value in attributes.items():
        try:
            _pickled({name: value}, record)
        except RAISED as error:
            stuck[name] = reason_of(error)
    return stuck


class _Pickler(pickle.Pickler):
    """Writes a held tuple as its number, and any other tuple by its values: there is
    nothing left to ack or fail.
    """

    def __init__(self, sink: io.BytesIO, record: Record | None) -> None:
        super().__init__(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self._record = record
        self._numbers: dict[int, int] = {}
        self.held: list[Tuple] = []

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not Tuple:
            return None
        if self._record is None or obj.record is not self._record or obj.state != OPEN:
            origin = obj.origin
            return (
                obj.values,
                origin.component,
                origin.stream,
                origin.task,
                origin.schema,
                obj.state,
                obj.lanes,
            )
        number = self._numbers.setdefault(id(obj), len(self.held))
        if number == len(self.held):
            self.held.append(obj)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, held: Sequence[Tuple]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._held = held

    def persistent_load(self, pid: Any) -> Tuple:
        if isinstance(pid, int):
            return self._held[pid]
        values, component, stream, task, schema, state, lanes = pid
        tup = Tuple(values, Origin(component, stream, task, schema), 0, 0, None, lanes)
        tup.state = state
        return tup


def _framed(frames: list[bytes]) -> Iterator[bytes]:
    for frame in frames:
        yield _FRAME.pack(len(frame))
        yield frame


def _frames(content: bytes) -> list[bytes]:
    frames = []
    at = 0
    while at < len(content):
        if len(content) - at < _FRAME.size:
            raise ValueError("not a snapshot: it ends too early")
        (length,) = _FRAME.unpack_from(content, at)
        at += _FRAME.size + length
        if at > len(content):
            raise ValueError("not a snapshot: it ends too early")
        frames.append(content[at - length : at])
    return frames


class BadSignatureError(ValueError):
    """These bytes were not signed with this key for this purpose."""


def new_key() -> bytes:
    """A key for one run; it travels with the job, never through the server."""
    return secrets.token_bytes(_SIGNATURE_BYTES)


def sign(key: bytes, purpose: str, content: bytes) -> bytes:
    """The content with a signature before it; ``purpose`` says which task and step it is for."""
    return _signature(key, purpose, content) + content


def verified(key: bytes, purpose: str, signed: bytes) -> bytes:
    """The content; raises BadSignatureError if anything about it was changed."""
    content = signed[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signed[:_SIGNATURE_BYTES], _signature(key, purpose, content)):
        raise BadSignatureError(
            f"the state of {purpose} in Redis has a wrong signature: it was written by "
            "another process"
        )
    return content


def body_of(signed: bytes) -> bytes:
    """The content unchecked, for content that is safe from any writer."""
    return signed[_SIGNATURE_BYTES:]


def _signature(key: bytes, purpose: str, content: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + content, "sha256")


def joined(order: bytes, copy: bytes) -> bytes:
    """Both parts; each may be empty."""
    return _ORDER_MARK + _ORDER_LENGTH.pack(len(order)) + order + copy


def parted(snapshot: bytes) -> tuple[bytes, bytes]:
    """The parts of a snapshot, order and copy; one that was not joined is the copy's."""
    if not snapshot.startswith(_ORDER_MARK) or len(snapshot) < _HEAD_BYTES:
        return b"", snapshot
    (length,) = _ORDER_LENGTH.unpack_from(snapshot, len(_ORDER_MARK))
    return snapshot[_HEAD_BYTES : _HEAD_BYTES + length], snapshot[_HEAD_BYTES + length :]

"""A task's working copy of its bolt, and the snapshot that outlives the process."""

from __future__ import annotations

import copy
import hashlib
import hmac
import io
import logging
import pickle
import secrets
import struct
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, decode, encode
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.bolts.bolt import slots_of
from tiercel.spark_jobs.bolts.tuples import OPEN, Origin, Tuple, tuples_of
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt, StepBolt
from tiercel.spark_jobs.emitting.answers import Answers
from tiercel.spark_jobs.emitting.fold import join_lineages, select
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import check_result
from tiercel.spark_jobs.reasons import raised, reason_of
from tiercel.spark_jobs.topology.graph import Topology

_FRAME = struct.Struct(">I")
_CHUNKS_FROM = 5
_SIGNATURE_BYTES = 32
_PLACE = 8


_NO_TREES = join_lineages([])


@dataclass(kw_only=True, slots=True)
class Held:
    """Tuples that a bolt has neither acked nor failed, with their trees in the same order."""

    tuples: list[Tuple] = field(default_factory=list)
    lineage: Lineage = _NO_TREES
    # Roots of tuples that only threads refer to, not attributes: they are lost with the process.
    threads: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A snapshot, and the held tuples that were found while it was taken."""

    content: bytes
    held: Held
    # Attributes that cannot be pickled, with the reason for each.
    stuck: dict[str, str]


def copied(bolt: AnyBolt) -> AnyBolt:
    """Return a copy of a bolt of the topology. Raises TypeError for an attribute that cannot be
    copied, with its name.
    """
    # A module is pickled by its name on the way to Spark, but ``deepcopy`` refuses it.
    modules = {id(module): module for module in list(sys.modules.values())}
    try:
        return copy.deepcopy(bolt, dict(modules))
    except raised():
        for name, value in _attributes_of(bolt).items():
            try:
                copy.deepcopy(value, dict(modules))
            except raised() as error:
                raise TypeError(
                    f"its attribute {name!r} cannot be copied ({reason_of(error)}): make it in "
                    "prepare, not in __init__"
                ) from error
        raise


def _attributes_of(bolt: AnyBolt) -> dict[str, Any]:
    kind: Any = type(bolt)
    if not (slots := slots_of(kind)):
        return vars(bolt)
    return {name: getattr(bolt, name) for name in slots if hasattr(bolt, name)} | vars(bolt)


def _set_attributes(bolt: AnyBolt, attributes: Mapping[str, Any]) -> None:
    kind: Any = type(bolt)
    slots = slots_of(kind)
    vars(bolt).update({name: value for name, value in attributes.items() if name not in slots})
    for name in slots:
        if name in attributes:
            object.__setattr__(bolt, name, attributes[name])  # it may be a frozen dataclass


def pack(
    bolt: StepBolt, local: set[str], record: Record | None = None, lineage: Lineage | None = None
) -> Packed:
    """Take a snapshot of a copy, without its attributes ``local``, after the step of ``record``.

    ``lineage`` is the lineage of the step's whole input. An open tuple is held if an attribute or a
    thread still refers to it; any other open tuple can never be acked. The record drops its
    references to all open tuples. Raises the error of a user's pickling if leaving out single
    attributes does not avoid it.
    """
    attributes = {
        name: value
        for name, value in _attributes_of(bolt).items()
        if name not in local and name not in bolt.transient
    }
    stuck: dict[str, str] = {}
    try:
        pickled, tuples = _pickled(attributes, record)
    except raised():
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
    """Return the open tuples that no attribute refers to, but something else does: a thread."""
    left = [tup for tup in record.tuples if tup.state == OPEN]
    if not left:
        return []
    record.give_up(left)
    there = frozenset(map(id, reached))
    known = [weakref.ref(tup) for tup in left if id(tup) not in there and not tup.is_tick]
    left.clear()
    return [tup for one in known if (tup := one()) is not None]


def unpack(bolt: StepBolt, content: bytes) -> Held:
    """Set the attributes of a prepared copy from a snapshot; return the tuples it holds.

    Unpickles: pass only verified content.
    """
    pickled, places, told, threads, chunks = _opened(content)
    stored = [tup for chunk in chunks for tup in tuples_of(chunk)]
    tuples = [stored[place] for place in places.tolist()]
    for tup, (emitted, began_ns) in zip(tuples, told.tolist(), strict=True):
        tup.emitted = emitted
        tup.began_ns = began_ns
    lineage = select(join_lineages([chunk.lineage for chunk in chunks]), places)
    _set_attributes(bolt, _Unpickler(pickled, tuples).load())
    return Held(tuples=tuples, lineage=lineage, threads=threads.tolist())


def held_roots(content: bytes) -> list[int]:
    """Return the roots of all held tuples in a snapshot, each once.

    Unpickles nothing; raises ValueError for bytes that are no snapshot.
    """
    _, _, _, threads, chunks = _opened(content)
    roots: list[int] = np.unique(
        np.concatenate([threads, *(chunk.lineage.roots for chunk in chunks)])
    ).tolist()
    return roots


def thread_roots(content: bytes) -> list[int]:
    """Return the roots of tuples that only threads held, each once; see ``held_roots``."""
    roots: list[int] = _opened(content)[3].tolist()
    return roots


def _opened(
    content: bytes,
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64], Ids, list[Chunk]]:
    """Split and check a snapshot. Return the pickled attributes, the held tuples' places, their
    emission counts with start times, the roots held by threads, and the chunks.

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
        except raised() as error:
            stuck[name] = reason_of(error)
    return stuck


class _Pickler(pickle.Pickler):
    """Pickles a held tuple as its index. Any other tuple is pickled by value: it needs no ack."""

    def __init__(self, sink: io.BytesIO, record: Record | None) -> None:
        super().__init__(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self._record = record
        self._numbers: dict[int, int] = {}
        self.held: list[Tuple] = []

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not Tuple:
            return None
        if self._record is None or obj.origin.record is not self._record or obj.state != OPEN:
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
        tup = Tuple(values, Origin(component, stream, task, schema), 0, lanes)
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
    """The content was not signed with this key for this purpose."""


def new_key() -> bytes:
    """Return a key for one run. It is sent with the job and never stored in Redis."""
    return secrets.token_bytes(_SIGNATURE_BYTES)


def sign(key: bytes, purpose: str, content: bytes) -> bytes:
    """Return the content prefixed with its signature; ``purpose`` names the content's task."""
    return _signature(key, purpose, content) + content


def verified(key: bytes, purpose: str, signed: bytes) -> bytes:
    """Return the content; raises BadSignatureError if content, key or purpose differ."""
    content = signed[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signed[:_SIGNATURE_BYTES], _signature(key, purpose, content)):
        raise BadSignatureError(
            f"the state of {purpose} in Redis has a wrong signature: it was written by "
            "another process"
        )
    return content


def body_of(signed: bytes) -> bytes:
    """Return the content unverified. Never unpickle it."""
    return signed[_SIGNATURE_BYTES:]


def _signature(key: bytes, purpose: str, content: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + content, "sha256")


log = logging.getLogger(__name__)

_MIB = 1024 * 1024
_LARGE = 8 * _MIB
_LIMIT = 256 * _MIB
# A snapshot without attributes and tuples, in place of one that is given up.
_BARE = b"".join(_framed([b"", pickle.dumps({}), b"", b"", b""]))


class WorkingCopy:
    """A bolt task's copy of its bolt. Between two steps, it equals the newest snapshot.

    A copy that can no longer be trusted, because ``flush`` raised, is dropped; the next use makes a
    new copy from the newest snapshot. One thread only.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the settings that a copy is made with
        self,
        topology: Topology,
        task: int,
        config: Mapping[str, Any],
        key: bytes,
        snapshot: bytes | None,
        wake: Callable[[], None],
    ) -> None:
        """The component's own settings override ``config``; ``key`` signs the snapshots of the run;
        ``wake`` is called when a thread has acked or failed a tuple.
        """
        self._topology = topology
        self._task = task
        self.component = topology.component_of(task)
        self._config = config
        self._key = key
        # The newest stored snapshot, verified; None: the copy is as ``prepare`` left it.
        self._kept = None if snapshot is None else self._content(snapshot)
        # The newest snapshot, stored or not.
        self._packed = self._kept
        # Roots of tuples that only threads held when the previous copy ended.
        self.lost: list[int] = [] if self._kept is None else thread_roots(self._kept)
        self._wake = wake
        self.answers = Answers(self.component, wake)
        # The copy; None before ``ready``, and once it was dropped.
        self.bolt: StepBolt | None = None
        self._digest = b""
        self._local: set[str] = set()
        # True if the newest snapshot has no attribute.
        self._was_bare = False
        # True after a step whose attributes were too large.
        self._was_too_large = False
        self.held = Held()

    def ready(self) -> StepBolt | BaseException:
        """Return the copy, made now if there is none, or the error that ``prepare`` raised."""
        if self.bolt is None:
            try:
                self.bolt = self._made()
            except raised() as error:
                return error
        return self.bolt

    def snapshot(self, record: Record, lineage: Lineage) -> bytes | None:
        """Take a signed snapshot after a step; None if nothing changed since the last one.

        Call ``kept`` once it is stored. If attributes cannot be pickled, the record is aborted, as
        if ``flush`` had raised, and the copy is dropped: a later copy would not know this step.
        """
        if self.bolt is None or record.aborted:
            return None
        left = sum([tup.state == OPEN and not tup.is_tick for tup in record.tuples])
        is_bare = not _attributes_of(self.bolt).keys() - self._local - self.bolt.transient
        if is_bare and self._was_bare and not left and not self.held.threads:
            return None
        self._was_bare = is_bare
        # Drop the references, so that tuples without other references are found to be gone.
        self.held.tuples = []
        packed = self._pack(self.bolt, record, lineage)
        if packed is None:
            return None
        self.held = packed.held
        _tell_forgotten(record, left - sum(not tup.is_tick for tup in packed.held.tuples))
        digest = _digest(packed.content)
        if digest == self._digest:
            return None
        self._digest = digest
        self._packed = packed.content
        return sign(self._key, self._purpose, packed.content)

    def attributes(self) -> list[Any]:
        """Return the values of the attributes that outlive the process."""
        own = _attributes_of(self.bolt) if self.bolt is not None else {}
        transient = self._local.union(self.bolt.transient if self.bolt is not None else ())
        return [value for name, value in own.items() if name not in transient]

    def kept(self) -> None:
        """Note that the newest snapshot is stored, so that the next attempt finds it."""
        self._kept = self._packed
        self._was_too_large = False

    @property
    def is_large(self) -> bool:
        """True if the stored attributes may be what a process has no memory for."""
        return self._kept is not None and len(self._kept) > _LARGE

    def begin_anew(self, why: str) -> None:
        """Give up the attributes, as a new run does; messages of the tuples that they held fail."""
        self.drop()
        held = held_roots(self._kept) if self._kept else []
        self.lost = list(dict.fromkeys([*self.lost, *held]))
        self._kept = self._packed = _BARE
        self._was_bare = False
        log.warning(
            "%s[%d] begins with new attributes, as in a new run: %s; name caches in transient",
            self.component, self._task, why, extra={"event": "attributes_given_up"},
        )  # fmt: skip

    def drop(self) -> None:
        """Clean up and drop the copy; the next use makes one from the newest stored snapshot."""
        bolt = self.bolt
        self.bolt = None
        if bolt is None:
            return
        self.answers.end()
        if self._kept is not None:
            self.lost += thread_roots(self._kept)
        self._clean_up(bolt.cleanup)

    def _clean_up(self, cleanup: Callable[[], object]) -> None:
        try:
            cleanup()
        except raised() as error:
            log.warning(
                "%s[%d]: cleanup raised %s", self.component, self._task, reason_of(error),
                extra={"event": "bolt_cleanup_failed"},
            )  # fmt: skip

    @property
    def _purpose(self) -> str:
        return f"task {self._task}"

    def _made(self) -> StepBolt:
        bolt = cast("StepBolt", copied(self._topology.bolts[self.component].bolt))
        context = self._topology.context_of(self._task)
        prepare: Callable[..., object] = bolt.prepare
        if (result := prepare(self._settings(), context)) is not None:
            check_result(result, prepare)
        # Attributes from ``prepare`` that cannot be pickled are created anew in each process.
        packed = pack(bolt, set())
        self._local = set(packed.stuck)
        self._digest = _digest(packed.content)
        self.held = Held()
        self.answers = Answers(self.component, self._wake)
        if self._kept is not None:
            self.held = unpack(bolt, self._kept)
            # A snapshot that is given up is still stored: replace it.
            self._digest = b"" if self._kept is _BARE else _digest(self._kept)
        return bolt

    def _settings(self) -> dict[str, Any]:
        return {**self._config, **self._topology.config_of(self.component).as_mapping()}

    def _content(self, snapshot: bytes) -> bytes | None:
        """Return the content of a signed snapshot; None if this run has not written it, so that the
        bolt starts without a snapshot.
        """
        try:
            return verified(self._key, self._purpose, snapshot)
        except BadSignatureError as error:
            log.warning(
                "%s; the bolt begins anew, and the tuples that it held time out",
                error,
                extra={"event": "snapshot_unreadable"},
            )
            return None

    def _pack(self, bolt: StepBolt, record: Record, lineage: Lineage) -> Packed | None:
        try:
            packed = pack(bolt, self._local, record, lineage)
        except raised() as error:
            self._lose(record, reason_of(error))
            return None
        size = len(packed.content)
        if size > _LIMIT:
            why = f"its attributes have {size // _MIB} MiB, the limit is {_LIMIT // _MIB}"
            self._lose(record, why)
            # One message may bring too much, whenever it comes again; a leak is near the limit.
            if self._was_too_large and self._kept and len(self._kept) > _LIMIT // 2:
                self.begin_anew(why)
            self._was_too_large = True
            return None
        if size > _LARGE:
            record.report(
                f"its attributes have {size // _MIB} MiB, pickled after each step in which they "
                "change: name attributes that need not outlive the process in transient, or use a "
                "StatefulBolt"
            )
        for name, why in packed.stuck.items():
            record.report(
                f"attribute {name!r} cannot be pickled ({why}): make it in prepare, or name "
                "it in transient"
            )
        self._local |= packed.stuck.keys()
        return packed

    def _lose(self, record: Record, why: str) -> None:
        reason = (
            f"cannot keep its attributes: {why}; name attributes that need not outlive the process "
            "in transient"
        )
        log.warning(
            "%s[%d]: %s", self.component, self._task, reason, extra={"event": "snapshot_failed"}
        )
        record.report(reason)
        record.abort(reason)
        self.drop()


def _tell_forgotten(record: Record, forgotten: int) -> None:
    if forgotten:
        record.report(
            f"{forgotten} tuples were neither acked nor failed nor kept in an attribute or a "
            "thread: their messages time out"
        )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()

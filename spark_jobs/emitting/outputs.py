"""Recorded emissions: one list per (stream, target task), turned into chunks when the step ends.

Their anchors are recorded beside them, and so are the numbers of an emission's copies.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.ids import NO_KEY, Keys, as_keys, child_keys, is_line
from tiercel.acker.inbox.chunk import Rows
from tiercel.acker.ledger import Ids
from tiercel.queues.values.python_values import TEXTS, members_in
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.errors import BadValuesError, DirectStreamError, UnknownStreamError
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.grouping import ByKey, Choose, ChooseBatch, Stream, batch_chooser


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchors:
    """The anchors of n emissions to one task: parallel arrays, one entry per (emission, anchor), in
    order of emission.
    """

    # Shape (n,): number of anchors of each emission.
    counts: Rows
    # The anchor's row in the input.
    rows: Rows
    # The emission's number among the emissions that are anchored to that row. The upper half, which
    # edges ignore, has the number of this copy among the emission's copies for one bolt.
    positions: Ids
    # Shape (n, LANES): the key from which an emission's key is derived, in place of its anchors'
    # keys; zeros for an emission without one.
    keys: Keys | None = None

    def select(self, emissions: Rows) -> Anchors:
        """Return the anchors of some of the emissions."""
        kept = emissions
        if len(self.rows) != len(self.counts) or not np.all(self.counts == 1):
            kept = expanded(
                (np.cumsum(self.counts) - self.counts)[emissions], self.counts[emissions]
            )
        return Anchors(
            counts=self.counts[emissions],
            rows=self.rows[kept],
            positions=self.positions[kept],
            keys=None if self.keys is None else self.keys[emissions],
        )

    def go(self, failed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask of the emissions with an anchor that has not ``failed``, or no anchor."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        good = np.bincount(owner, weights=~failed[self.rows], minlength=len(self.counts))
        goes: NDArray[np.bool_] = (good > 0) | (self.counts == 0)
        return goes

    def tied(self, failed: NDArray[np.bool_]) -> list[int]:
        """Return the ``failed`` rows that share an emission with a row that has not failed."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        tied: list[int] = self.rows[failed[self.rows] & self.go(failed)[owner]].tolist()
        return tied

    def numbered(self, numbers: Ids) -> Anchors:
        """Return the anchors of copies with these numbers, which go into the upper half."""
        upper = np.repeat(numbers, self.counts)
        return Anchors(counts=self.counts, rows=self.rows, positions=self.positions | upper)


class TaskOutput:
    """Tuples emitted to one task, or line, on one stream."""

    __slots__ = (
        "anchor_counts",
        "bolt",
        "counts",
        "keys",
        "named",
        "numbers",
        "positions",
        "rows",
        "schema",
        "stream",
        "target",
        "values",
    )

    def __init__(self, stream: str, schema: Schema, target: int, bolt: str) -> None:
        self.stream = stream
        self.schema = schema
        self.target = target
        # Empty for a line, from which any task of the bolt may take.
        self.named = () if is_line(target) else (target,)
        # The component of the target.
        self.bolt = bolt
        # True if ``BasicRecorder`` leaves it to the end of the step to count the emissions.
        self.counts = False
        self.clear()

    def clear(self) -> None:
        self.values: list[Sequence[Any]] = []
        self.rows: list[int] = []
        self.positions: list[int] = []
        self.anchor_counts: list[int] = []
        # Number of each emission among the task's emissions; all copies of one emission share it.
        #
        # ``anchor_counts`` and ``numbers`` stay empty where every emission has exactly one anchor,
        # as in a BasicBolt.
        self.numbers: list[int] = []
        # Lanes of keys of a spout's tuples, or of ``Anchors.keys``; empty if no tuple has one.
        self.keys: list[bytes] = []

    def add_key(self, key: bytes, number: int) -> None:
        """Add the key and the copy number of the tuple that was added last."""
        before = len(self.values) - 1 - len(self.keys)
        self.keys += [NO_KEY] * before
        self.positions += [0] * before
        self.keys.append(key)
        self.positions.append(number)

    def spout_keys(self) -> Keys:
        """Return the keys of a spout's tuples as the bolt receives them, if any tuple has a key."""
        before = len(self.values) - len(self.keys)
        single = np.ones(len(self.values), np.int64)
        positions = np.array([*self.positions, *[0] * before], np.uint64)
        return child_keys(as_keys([*self.keys, *[NO_KEY] * before]), single, positions, self.bolt)

    def mark(self) -> tuple[int, int]:
        """Return the numbers of emissions and anchors so far, for ``rewind``."""
        return len(self.values), len(self.rows)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forget the emissions since the mark."""
        emissions, anchors = mark
        del self.values[emissions:], self.anchor_counts[emissions:], self.numbers[emissions:]
        del self.rows[anchors:], self.positions[anchors:], self.keys[emissions:]

    def anchors(self) -> Anchors:
        """Return the anchors of all emissions."""
        single = np.ones(len(self.values), np.int64)
        return Anchors(
            counts=np.array(self.anchor_counts, np.int64) if self.anchor_counts else single,
            rows=np.array(self.rows, np.int64),
            positions=np.array(self.positions, np.uint64),
            keys=as_keys(self.keys) if self.keys else None,
        )


# Bytes of a tuple's ids in a chunk, and of a value whose type has a fixed size.
ID_BYTES = 24
_FIXED_BYTES = 8


class OutputStream:
    """One stream of a component: its fields and its subscribers."""

    __slots__ = (
        "_measured",
        "batch_choosers",
        "by_identity",
        "by_key",
        "direct",
        "fixed",
        "mutable",
        "only",
        "receivers",
        "schema",
        "subscribers",
        "text",
        "to_several",
        "width",
    )

    def __init__(self, schema: Schema, direct: dict[int, TaskOutput] | None) -> None:
        self.schema, self.width = schema, len(schema.fields)
        # Empty for a direct stream.
        self.subscribers: list[tuple[Choose, dict[int, TaskOutput]]] = []
        # The choosers of ``subscribers``, for collectors that emit whole batches.
        self.batch_choosers: list[ChooseBatch] = []
        # True if any subscriber's grouping uses the identity of an emission.
        self.by_identity = False
        # True if any subscriber's grouping may send a tuple to several tasks.
        self.to_several = False
        # Emissions by target task, if the stream is direct.
        self.direct = direct
        # True if tuples may hold lists, mappings or buffers.
        self.mutable = any(_may_change(field.arrow) for field in schema.fields)
        # The columns whose values vary in size, and the size of the ids and all other columns.
        self._measured = [
            (at, one.arrow) for at, one in enumerate(schema.fields) if not _is_fixed(one.arrow)
        ]
        self.fixed = ID_BYTES + _FIXED_BYTES * (self.width - len(self._measured))
        # The position of the only such column, if it has texts.
        texts = [at for at, column in self._measured if pa.types.is_string(column)]
        self.text = texts[0] if len(texts) == len(self._measured) == 1 else None
        # The usual stream sends all tuples to its only receiver, or each to one of its receivers by
        # a key; any other stream has neither.
        self.only: TaskOutput | None = None
        self.by_key: ByKey[Sequence[int]] | None = None
        self.receivers: dict[int, TaskOutput] = {}

    def subscribed(self) -> None:
        """Note that the stream has all its subscribers."""
        if len(self.subscribers) != 1 or self.to_several or self.by_identity or self.mutable:
            return
        [(choose, self.receivers)] = self.subscribers
        if len(self.receivers) == 1:
            [self.only] = self.receivers.values()
        elif isinstance(choose, ByKey):
            self.by_key = choose
        for task_output in self.receivers.values():
            task_output.counts = self.only is not None or self.by_key is not None

    def chosen(self, values: Sequence[Any], identity: int) -> list[TaskOutput]:
        """Return the receivers of an emission. Call it before anything is recorded: if a grouping
        raises and the bolt catches that, no task has received the tuple.
        """
        return [
            made[task] for choose, made in self.subscribers for task in choose(values, identity)
        ]

    def keep(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Copy the values: a component may reuse its lists, mappings and buffers before they are
        encoded.
        """
        if not self.mutable:
            return tuple(values)
        return tuple(
            [
                _kept(value, field.arrow)
                for value, field in zip(values, self.schema.fields, strict=True)
            ]
        )

    def size(self, values: Sequence[Any]) -> int:
        """Estimate the bytes that a tuple of these values takes in a chunk."""
        size = self.fixed
        for at, column in self._measured:
            value = values[at]
            size += len(value) if type(value) is str and value.isascii() else _size(value, column)
        return size


class Outputs:
    """All streams of one task."""

    def __init__(
        self, topology: Topology, task_id: int, local: AbstractSet[int] = frozenset()
    ) -> None:
        """``local`` are the bolt tasks in the same process as this task."""
        context = topology.context_of(task_id)
        self._component = component = context.component
        spec = topology.spec(component)
        # Bytes that one call may emit.
        self.limit = topology.config_of(component).max_output_bytes
        self.streams: dict[str, OutputStream] = {}
        self.task_outputs: list[TaskOutput] = []
        # The component of each task and line that receives a stream.
        self.bolts: dict[int, str] = {}
        for name, schema in spec.streams.items():
            output_stream = self.streams[name] = OutputStream(
                schema, {} if name in spec.direct else None
            )
            for bolt, subscription in topology.subscribers(component, name):
                tasks = topology.task_ids(bolt)
                targets = subscription.grouping.receivers(tasks)
                made = {target: TaskOutput(name, schema, target, bolt) for target in targets}
                self.task_outputs += made.values()
                self.bolts.update(dict.fromkeys(targets, bolt))
                if output_stream.direct is None:
                    stream = Stream(
                        schema=schema, tasks=tasks, name=name, context=context, local=local
                    )
                    output_stream.subscribers.append((subscription.grouping.chooser(stream), made))
                    output_stream.batch_choosers.append(
                        batch_chooser(subscription.grouping, stream)
                    )
                    output_stream.by_identity |= subscription.grouping.by_identity
                    output_stream.to_several |= subscription.grouping.to_several
                else:
                    output_stream.direct.update(made)
            output_stream.subscribed()

    def for_emit(self, stream: str, values: Sequence[Any]) -> OutputStream:
        """Return the output stream of this name for ``emit``.

        Raises UnknownStreamError, DirectStreamError, BadValuesError.
        """
        output_stream = self.find(stream)
        self._check_width(output_stream, stream, values)
        return output_stream

    def direct(self, task: int, stream: str, values: Sequence[Any]) -> TaskOutput:
        """Return the ``TaskOutput`` that ``emit_direct`` adds to.

        Raises UnknownStreamError, DirectStreamError, BadValuesError.
        """
        output_stream = self.find(stream, direct=True)
        self._check_width(output_stream, stream, values)
        return self.receiver(output_stream, stream, task)

    def find(self, stream: str, *, direct: bool = False) -> OutputStream:
        """Return the output stream of this name.

        Raises UnknownStreamError, and DirectStreamError if the stream is direct and ``direct`` is
        False, or the other way round.
        """
        output_stream = self.streams.get(stream)
        if output_stream is None:
            known = ", ".join(self.streams) or "none: set output_fields"
            raise UnknownStreamError(
                f"{self._component!r} emits on stream {stream!r}; its streams are {known}"
            )
        if output_stream.direct is not None and not direct:
            raise DirectStreamError(
                f"{self._component!r} emits on stream {stream!r}, which is direct: use emit_direct"
            )
        if output_stream.direct is None and direct:
            raise DirectStreamError(
                f"{self._component!r} emits directly on stream {stream!r}, which is not direct:"
                " use emit, or name the stream in direct_streams"
            )
        return output_stream

    def receiver(self, output_stream: OutputStream, stream: str, task: int) -> TaskOutput:
        """Return the ``TaskOutput`` of one task on a direct stream.

        Raises DirectStreamError for a task that does not receive the stream.
        """
        made = output_stream.direct or {}
        try:
            return made[task]
        except (KeyError, TypeError):
            known = ", ".join(map(str, made)) or "none: subscribe one with direct_grouping"
            raise DirectStreamError(
                f"{self._component!r} emits directly to task {task!r}; the tasks that receive "
                f"stream {stream!r} are {known}"
            ) from None

    def clear(self) -> None:
        """Forget the emissions."""
        for task_output in self.task_outputs:
            task_output.clear()

    def _check_width(self, output_stream: OutputStream, stream: str, values: Sequence[Any]) -> None:
        # The usual types first: a look at the abstract class takes longer than the emission.
        listed = type(values) in {list, tuple} or (
            isinstance(values, Sequence)
            and not isinstance(values, (str, bytes, bytearray, memoryview))
        )
        if not listed or len(values) != output_stream.width:
            raise BadValuesError(
                f"{self._component!r} emits {values!r:.80} on stream {stream!r}; give a list "
                f"with one value for each of ({output_stream.schema})"
            )


def _is_fixed(column: pa.DataType) -> bool:
    return not (_may_change(column) or pa.types.is_string(column))


def _size(value: Any, column: pa.DataType) -> int:
    """Estimate the bytes of a value, whose type is checked only later."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, tuple)) and pa.types.is_list(column):
        inner = column.value_type
        if _is_fixed(inner):
            return _FIXED_BYTES * len(value)
        return sum([_FIXED_BYTES + _size(one, inner) for one in value])
    if isinstance(value, dict) or pa.types.is_struct(column):
        return _size_of_members(value, column)
    size: int = getattr(value, "nbytes", _FIXED_BYTES)
    return size


def _size_of_members(value: Any, column: pa.DataType) -> int:
    if not pa.types.is_struct(column):
        texts = pa.string()
        return sum([_size(one, texts) for pair in value.items() for one in pair])
    members = members_in(value, column.names) or {}
    return sum([_FIXED_BYTES + _size(members.get(each.name), each.type) for each in column])


def _may_change(column: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(column)
        or pa.types.is_binary(column)
        or pa.types.is_struct(column)
        or column == TEXTS
    )


def _kept(value: Any, column: pa.DataType) -> Any:
    """Copy a value that could change; types are checked later."""
    if not _may_change(column) or isinstance(value, (str, bytes, NoneType)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    # Each receiver encodes the values: an iterator would be empty for the second one.
    if pa.types.is_list(column) and isinstance(
        value, (list, tuple, Iterator, KeysView, ValuesView)
    ):
        inner = column.value_type
        return [_kept(one, inner) for one in value] if _may_change(inner) else list(value)
    if pa.types.is_struct(column) and (members := members_in(value, column.names)) is not None:
        types = {each.name: each.type for each in column}
        return {
            name: _kept(one, types[name]) if name in types else one for name, one in members.items()
        }
    with suppress(Exception):
        return copy.copy(value)
    # It fits no column, and the check of its type names the field.
    return value


def copy_numbers(chosen: Sequence[TaskOutput]) -> list[int]:
    """Number the copies of one emission for each bolt, in the upper half of 64 bits, so that the
    keys of the copies differ.

    Copies are numbered in the order of their tasks: the order in which a grouping names the tasks
    makes no difference.
    """
    found = [0] * len(chosen)
    seen: dict[str, int] = {}
    for at in sorted(range(len(chosen)), key=lambda at: chosen[at].target):
        bolt = chosen[at].bolt
        number = seen.get(bolt, 0)
        seen[bolt] = number + 1
        found[at] = number << 32
    return found


def copy_numbers_of(tasks: Mapping[int, Rows]) -> dict[int, Ids]:
    """Return the ``copy_numbers`` of many emissions to the tasks of one bolt, by task.

    ``tasks`` has the rows that each task receives. Empty if no emission has several copies.
    """
    parts = [rows for rows in tasks.values() if len(rows)]
    most = 1 + max([int(rows[-1]) for rows in parts], default=0)
    if len(parts) <= 1 or sum(map(len, parts)) <= np.unique(np.concatenate(parts)).size:
        return {}
    seen = np.zeros(most, np.uint64)
    numbers = {}
    for task in sorted(tasks):
        numbers[task] = seen[tasks[task]]
        seen[tasks[task]] += np.uint64(1 << 32)
    return numbers


def expanded(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> Rows:
    """Return the numbers starts[i] … starts[i] + counts[i] - 1, for each i in turn."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Rows = np.arange(total) + np.repeat(starts.astype(np.int64) - (ends - counts), counts)
    return numbers

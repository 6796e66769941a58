"""Groupings: the tasks of a subscriber that receive a tuple, or the line that its tasks share.

A choice depends only on the tuple: its values, or its identity. Counters and salted hashes would
choose another task when a step is repeated, and the ledger would see different work. The tasks that
share a process stay the same during a run.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from functools import singledispatch
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.ids import hash_values, hashed_values, line_of, mix, mix_array
from tiercel.acker.inbox.chunk import Rows
from tiercel.acker.ledger import Ids
from tiercel.queues.errors import SchemaError
from tiercel.queues.values.python_values import TEXTS, holds, python_values
from tiercel.queues.values.schema import UNFIT, Field, Schema
from tiercel.spark_jobs.bolts.collecting import TopologyContext
from tiercel.spark_jobs.errors import BadValuesError, GroupingError, TopologyError

# A tuple's values to 32 bits. Raises BadValuesError for a key that does not fit its column's type.
KeyHash = Callable[[Sequence[Any]], int]
T = TypeVar("T")

# Keys to cache: a repeated key costs one look-up.
_CACHE = 100_000
# Types that Arrow does not convert; other values are hashed after a round trip through Arrow.
_EXACT: dict[pa.DataType, type] = {
    pa.string(): str,
    pa.binary(): bytes,
    pa.float64(): float,
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
}


def key_hash(schema: Schema, fields: Sequence[str]) -> KeyHash:
    """Return a function that hashes these fields."""
    find = by_key(schema, fields, lambda found: found)
    return lambda values: find(values, 0)


def by_key(schema: Schema, fields: Sequence[str], of: Callable[[int], T]) -> ByKey[T]:
    """Return a function that applies ``of`` to the hash of these fields.

    The column's type decides which values are equal: 1, 1.0 and a numpy integer are one value of a
    long column, two datetimes of one moment are one timestamp.
    """
    return ByKey(schema, fields, lambda key: of(hash_values(key)))


def key_digest(schema: Schema, fields: Sequence[str]) -> Callable[[Sequence[Any]], bytes]:
    """Return a function that hashes these fields to sixteen bytes, so that two keys of flat columns
    do not collide, as they would with 32 bits.
    """
    find = ByKey(schema, fields, lambda key: hashed_values(key, 16))
    return lambda values: find(values, 0)


class ByKey(Generic[T]):
    """Applies a function to the values of some fields, once per key. Ignores its second argument.

    For the loop of emissions, which has no time for a call: ``known[key_of(values)]`` is the result
    for values with a known key. Raises KeyError for a new key, and TypeError for a list, which is
    not hashable and never cached. Keys of ``key_of`` that are equal are equal in the columns too,
    so they may share a cache entry.
    """

    __slots__ = ("_compute", "key_of", "known")

    def __init__(
        self, schema: Schema, fields: Sequence[str], of: Callable[[Sequence[Any]], T]
    ) -> None:
        self.key_of = _key_of(schema, fields)
        self.known: dict[Any, T] = {}
        self._compute = _without_cache(schema, fields, of)

    def __call__(self, values: Sequence[Any], _identity: int) -> T:
        known = self.known
        try:
            return known[self.key_of(values)]
        except TypeError:
            return self._compute(values)
        except KeyError:
            if len(known) >= _CACHE:
                known.clear()
            found = known[self.key_of(values)] = self._compute(values)
            return found


def _key_of(schema: Schema, fields: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """Return a function from values to a key; values with equal keys are equal in their columns.

    Python's equality is not enough for datetimes: where clocks are set back, two that are an hour
    apart are equal, and so are two of one moment in zones with different dates.
    """
    positions = [schema.position(field) for field in fields]
    found = itemgetter(*positions)
    times = [at for at in positions if holds(schema.fields[at].arrow, pa.types.is_temporal)]
    if not times:
        return found
    if any(pa.types.is_list(schema.fields[at].arrow) for at in times):
        return lambda values: [found(values)]  # not hashable
    return lambda values: (found(values), *[_told_by(values[at]) for at in times])


def _told_by(value: Any) -> Any:
    return (value.fold, value.tzinfo) if isinstance(value, datetime) else None


def _without_cache(
    schema: Schema, fields: Sequence[str], of: Callable[[Sequence[Any]], T]
) -> Callable[[Sequence[Any]], T]:
    positions = [schema.position(field) for field in fields]
    columns = [schema.fields[position] for position in positions]

    def compute(values: Sequence[Any]) -> T:
        try:
            key = [
                _canonical(values[at], column)
                for at, column in zip(positions, columns, strict=True)
            ]
            return of(key)
        except UNFIT:
            try:
                schema.check(values)
            except SchemaError as error:
                raise BadValuesError(f"cannot group by {', '.join(fields)}: {error}") from None
            raise

    return compute


def _canonical(value: Any, column: Field) -> Any:
    if value is None or type(value) is _EXACT.get(column.arrow):
        return value
    found = column.array([value])[0].as_py()
    # A map is the same in any order.
    return sorted(found) if column.arrow == TEXTS else found


def not_a_key(field: Field) -> str:
    """Name the type of a field by which nothing can be grouped."""
    return "a map" if field.arrow == TEXTS else field.kind


# Up to this many tasks, one search per task is faster than sorting.
_FEW = 4
# (rows of the stream's types, the identity of each) to the receiving tasks, each with its row
# numbers in order.
ChooseBatch = Callable[[pa.RecordBatch, Ids], dict[int, Rows]]
# (values, identity) to the ids of tasks and lines, each at most once.
#
# The identity is a 64-bit number of the emission, well mixed.
Choose = Callable[[Sequence[Any], int], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Input of a grouping: a stream as one task emits it, and the subscriber's tasks."""

    schema: Schema
    # The subscriber's tasks, lowest id first.
    tasks: Sequence[int]
    name: str
    # The emitting task's context.
    context: TopologyContext
    # The bolt tasks in the emitting task's process; none in a spout's.
    local: AbstractSet[int] = frozenset()


class Grouping(ABC):
    """Spreads a stream over the tasks of one subscriber: the base of the built-in groupings.

    For your own grouping see ``CustomGrouping``.
    """

    name = ""
    # True if a choice depends on the identity of the emission.
    by_identity = False
    # True if it may send a tuple to several tasks.
    to_several = False

    @property
    def outline(self) -> list[str]:
        """Its class, and the settings that decide its choices; for ``shape_of``."""
        return [type(self).__qualname__]

    def validate(self, schema: Schema) -> None:  # noqa: B027 - most groupings have nothing to check
        """Raise TopologyError if the grouping does not fit the stream's fields."""

    def receivers(self, tasks: Sequence[int]) -> Sequence[int]:
        """Return the tasks and lines of a subscriber with these tasks that may receive tuples."""
        return tasks

    @abstractmethod
    def chooser(self, stream: Stream) -> Choose:
        """Return the function by which one emitting task chooses among the stream's tasks."""


class Shuffle(Grouping):
    """Send each tuple to the line of the subscriber: the next free task takes it.

    A subscriber with one task has no line.
    """

    name = "shuffle"

    def receivers(self, tasks: Sequence[int]) -> Sequence[int]:
        return tasks if len(tasks) == 1 else [line_of(tasks)]

    def among(self, stream: Stream) -> Sequence[int]:
        """Return the receivers that share the stream."""
        return self.receivers(stream.tasks)

    def chooser(self, stream: Stream) -> Choose:
        single = [(target,) for target in self.among(stream)]
        count = len(single)
        if count == 1:
            return lambda _values, _identity: single[0]
        return lambda _values, identity: single[(identity >> 32) % count]


class NoGrouping(Shuffle):
    """No preference: as shuffle."""

    name = "none"


class LocalOrShuffle(Shuffle):
    """Send to a random task in the emitter's own process; as shuffle if there is none."""

    name = "local_or_shuffle"
    by_identity = True

    def receivers(self, tasks: Sequence[int]) -> Sequence[int]:
        return list(dict.fromkeys([*tasks, *super().receivers(tasks)]))

    def among(self, stream: Stream) -> Sequence[int]:
        local = [task for task in stream.tasks if task in stream.local]
        return local or super().receivers(stream.tasks)


@dataclass(frozen=True)
class Fields(Grouping):
    """Send equal values of these fields to one task, across runs and machines."""

    fields: tuple[str, ...]
    name = "fields"

    @property
    def outline(self) -> list[str]:
        return [*super().outline, *self.fields]

    def validate(self, schema: Schema) -> None:
        if not self.fields:
            raise TopologyError(
                f"a {self.name} grouping needs at least one field; the fields are "
                f"{', '.join(schema.names)}"
            )
        for field in self.fields:
            if field not in schema.names:
                raise TopologyError(
                    f"there is no field {field!r} to group by; the fields are "
                    f"{', '.join(schema.names)}"
                )
            found = schema.fields[schema.position(field)]
            if not found.is_key:
                raise TopologyError(
                    f"field {field!r} is {not_a_key(found)}, by which nothing can be grouped; "
                    "emit the key as a field of its own"
                )

    def chooser(self, stream: Stream) -> Choose:
        single = [(task,) for task in stream.tasks]
        return by_key(stream.schema, self.fields, lambda found: single[found % len(single)])


class PartialKey(Fields):
    """Send equal values of these fields to two tasks, half of the tuples to each.

    Storm takes the task that the emitter has used less so far. Such a counter would choose another
    task when a step is repeated, so here the tuple's identity decides; over many tuples both are
    used equally.
    """

    name = "partial_key"
    by_identity = True

    def chooser(self, stream: Stream) -> Choose:
        hash_of = key_hash(stream.schema, self.fields)
        single = [(task,) for task in stream.tasks]
        count = len(single)
        if count == 1:
            return lambda _values, _identity: single[0]

        def choose(values: Sequence[Any], identity: int) -> Sequence[int]:
            found = hash_of(values)
            first = found % count
            if identity & 1:
                return single[first]
            return single[(first + 1 + mix(found) % (count - 1)) % count]

        return choose


class AllTasks(Grouping):
    """Send each tuple to every task."""

    name = "all"
    to_several = True

    def chooser(self, stream: Stream) -> Choose:
        everyone = tuple(stream.tasks)
        return lambda _values, _identity: everyone


class Global(Grouping):
    """Send each tuple to the task with the lowest id."""

    name = "global"

    def receivers(self, tasks: Sequence[int]) -> Sequence[int]:
        return [min(tasks)]

    def chooser(self, stream: Stream) -> Choose:
        lowest = (min(stream.tasks),)
        return lambda _values, _identity: lowest


class Direct(Grouping):
    """Send to the task that the emitter names with ``emit_direct``, on one of its
    ``direct_streams``.
    """

    name = "direct"

    def chooser(self, stream: Stream) -> Choose:
        raise GroupingError(
            f"stream {stream.name!r} of {stream.context.component!r} is direct: use emit_direct"
        )


@runtime_checkable
class CustomGrouping(Protocol):
    """Protocol of a user's grouping: any object with these two methods. A subclass may leave
    ``prepare`` out.

    Each emitting task has its own copy. Choose by the values alone. A choice that a repeated step
    does not repeat (by a counter, a clock, ``hash``) loses nothing, but the ledger sees different
    work and has the step's messages delivered again.
    """

    def prepare(self, context: TopologyContext, stream: str, target_tasks: Sequence[int]) -> None:  # noqa: ARG002 - for those who override it
        """Called once, before the first choice; ``context`` is that of the emitting task."""
        return  # without a statement it is abstract, and no subclass may leave it out

    def choose_tasks(self, task_id: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the tasks of ``target_tasks`` that receive the tuple; ``task_id`` is the emitting
        task.
        """


@dataclass(frozen=True)
class Custom(Grouping):
    """Grouping by a user's object."""

    grouping: CustomGrouping
    name = "custom"
    to_several = True

    @property
    def outline(self) -> list[str]:
        """The class of the object; its code and attributes cannot be compared."""
        return [*super().outline, type(self.grouping).__qualname__]

    def chooser(self, stream: Stream) -> Choose:
        """Return the choice; ``prepare`` is called at the first tuple, so that an error in it fails
        tuples and not the Spark task.
        """
        context = stream.context
        known = frozenset(stream.tasks)
        ready: list[CustomGrouping] = []

        def choose(values: Sequence[Any], _identity: int) -> Sequence[int]:
            if not ready:
                mine = copy.deepcopy(self.grouping)
                mine.prepare(context, stream.name, list(stream.tasks))
                ready.append(mine)
            # Each task once: a tuple sent to one task twice would have one edge id, which would
            # cancel out.
            chosen = list(dict.fromkeys(ready[0].choose_tasks(context.task_id, values)))
            foreign = [task for task in chosen if task not in known]
            if foreign:
                raise GroupingError(
                    f"the grouping of stream {stream.name!r} of {context.component!r} chose task "
                    f"{foreign[0]!r}; choose among {', '.join(map(str, stream.tasks))}"
                )
            return chosen

        return choose


@singledispatch
def batch_chooser(grouping: Grouping, stream: Stream) -> ChooseBatch:
    """Return the function by which one emitting task chooses for a whole batch.

    Groupings without a vectorised choice, such as custom ones, choose row by row.
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
    """Return each task with its row numbers; ``tasks`` has the task of each row."""
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
    """Return a function that hashes the key of every row, once per distinct key."""
    columns = [schema.position(field) for field in fields]
    keyed = Schema(tuple(schema.fields[column] for column in columns))
    hash_of = _without_cache(keyed, fields, hash_values)
    known = _Hashes(hash_of)

    def hashes(batch: pa.RecordBatch) -> Ids:
        codes, keys = _distinct([batch.column(column) for column in columns])
        try:
            found = np.fromiter(map(known.__getitem__, keys), np.uint64, len(keys))
        except TypeError:  # a list: not hashable, hence not cached
            found = np.fromiter(map(hash_of, keys), np.uint64, len(keys))
        in_order: Ids = found[codes]
        return in_order

    return hashes


class _Hashes(dict[Any, int]):
    """Hashes of keys, each computed once. A look-up of a known key calls no Python function."""

    def __init__(self, hash_of: KeyHash) -> None:
        super().__init__()
        self._hash_of = hash_of

    def __missing__(self, key: Sequence[Any]) -> int:
        if len(self) >= _CACHE:
            self.clear()
        found = self[key] = self._hash_of(key)
        return found


def _distinct(columns: Sequence[pa.Array]) -> tuple[Rows, Sequence[Sequence[Any]]]:
    """Return the index of each row's key among the distinct keys, and these keys."""
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

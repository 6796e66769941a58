"""The tuple that a bolt receives, and ``field``, a setting that is read from each tuple."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from tiercel.acker.ids import KEY_BYTES, lanes_of
from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.ledger import Ids
from tiercel.queues.values.python_values import TEXTS, python_values
from tiercel.spark_jobs.bolts.streams import SYSTEM, TICK

OPEN, ACKED, FAILED = range(3)


class Origin:
    """Origin of the tuples of one chunk in one step, shared by all of them."""

    __slots__ = ("component", "fields", "positions", "record", "schema", "seeds", "stream", "task")

    def __init__(  # noqa: PLR0913, PLR0917 - everything that tuples share
        self,
        component: str,
        stream: str,
        task: int,
        schema: pa.Schema,
        record: object = None,
        seeds: Sequence[int] | Ids = (),
    ) -> None:
        self.component = component
        self.stream = stream
        self.task = task
        self.schema = schema
        self.fields = tuple(schema.names)
        self.positions = {name: position for position, name in enumerate(self.fields)}
        # The record of the step that has the tuples: ``emitting.record.Record``.
        self.record = record
        # The seeds of all tuples of the step, by row.
        self.seeds = seeds

    def of(self, record: object, seeds: Sequence[int] | Ids) -> Origin:
        """Return the same for another step."""
        return Origin(self.component, self.stream, self.task, self.schema, record, seeds)


class Tuple:
    """One tuple: ``tup["word"]``, ``tup[0]``, ``tup.values``.

    Ack it, fail it or anchor to it, on the task that received it.
    """

    # Every step makes thousands: with one slot more, making them takes half as long again.
    __slots__ = (
        "__weakref__",
        "began_ns",
        "emitted",
        "lanes",
        "origin",
        "row",
        "state",
        "values",
    )

    def __init__(
        self, values: Sequence[Any], origin: Origin, row: int, lanes: bytes | None = None
    ) -> None:
        self.values = values
        self.origin = origin
        # Its number in the input of the step, for the collector.
        self.row = row
        # The key, and the message's digests by ``acker.ids.said_by``.
        self.lanes = lanes
        # Emissions anchored to it so far.
        self.emitted = 0
        self.state = OPEN
        # Start of its ``execute``, in nanoseconds since the epoch, if the bolt may hold tuples.
        self.began_ns = 0

    def __getitem__(self, key: str | int) -> Any:
        try:
            return self.values[self.origin.positions[key]]
        except KeyError:
            if isinstance(key, int):
                return self.values[key]
            raise KeyError(
                f"there is no field {key!r}; the fields are {', '.join(self.origin.fields)}"
            ) from None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the values."""
        return self.origin.fields

    @property
    def source_component(self) -> str:
        """The component that emitted the tuple."""
        return self.origin.component

    @property
    def source_stream(self) -> str:
        """The tuple's stream."""
        return self.origin.stream

    @property
    def source_task(self) -> int:
        """The task that emitted the tuple."""
        return self.origin.task

    @property
    def seed(self) -> int:
        """A well-mixed number derived from its identity; if the tuple is tracked, the same in each
        attempt at the task.
        """
        return int(self.origin.seeds[self.row])

    @property
    def key(self) -> bytes | None:
        """A unique key of 16 bytes, the same at each delivery of the message, also after a restart
        and for a dead letter that was put back.

        None if the message has no identity, see ``QueueSpout(identity=…)``, or if the tuple was
        emitted outside any tree or anchored to a tuple without a key.
        """
        return None if self.lanes is None else self.lanes[:KEY_BYTES]

    @property
    def is_tick(self) -> bool:
        """True for a tick, sent every ``tick_tuple_freq_secs``.

        It is in no tree: acking or failing it does nothing.
        """
        return self.origin.component == SYSTEM and self.origin.stream == TICK

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r:.60}" for name, value in zip(self.fields, self.values, strict=True)
        )
        return f"Tuple({self.source_component}:{self.source_stream}, {shown})"


def tuples_of(
    chunk: Chunk, first: int = 0, seeds: Sequence[int] | Ids = (), record: object = None
) -> list[Tuple]:
    """Return the tuples of a chunk. Their row numbers begin with ``first``; ``seeds`` has the
    seeds of all rows of the step.
    """
    route = chunk.route
    origin = Origin(
        route.component, route.stream, route.source_task, chunk.values.schema, record, seeds
    )
    rows = range(first, first + chunk.values.num_rows)
    keys = chunk.lineage.keys
    known = repeat(None) if keys is None else lanes_of(keys)
    return list(map(Tuple, _values_in(chunk.values), repeat(origin), rows, known))


def _values_in(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = [
        python_values(column) if column.type == TEXTS else column.to_pylist()
        for column in batch.columns
    ]
    return zip(*columns, strict=True)


class Originals:
    """The values of the tuples of some chunks as they came."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._ends = np.cumsum([chunk.values.num_rows for chunk in chunks], dtype=np.int64)
        # True if a call of a bolt can change values: lists and mappings.
        self.may_change = any(
            pa.types.is_nested(column.type) for chunk in chunks for column in chunk.values.columns
        )

    def restore(self, tuples: Iterable[Tuple]) -> None:
        """Undo what calls have changed in these tuples, whose row numbers count through the chunks
        from 0: another call gets them now.
        """
        if not self.may_change:
            return
        made = sorted(tuples, key=_row_of)
        rows = np.array([tup.row for tup in made], np.int64)
        numbers = np.searchsorted(self._ends, rows, "right")
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(made)]):
            number = numbers[start]
            batch = self._chunks[number].values
            first = self._ends[number] - batch.num_rows
            part = batch.take(pa.array(rows[start:end] - first))
            for tup, values in zip(made[start:end], _values_in(part), strict=True):
                tup.values = values


_row_of = attrgetter("row")


@dataclass(frozen=True, slots=True)
class FromField:
    """A field of the tuple, in place of a constant: made by ``field``."""

    name: str
    # Replaces a null.
    default: Any = None

    def of(self, tup: Tuple) -> Any:
        """Return its value; raises KeyError if the tuple has no such field."""
        value = tup[self.name]
        return self.default if value is None else value

    def __str__(self) -> str:
        return f"field {self.name!r}"


@dataclass(frozen=True, slots=True)
class _FromFields:
    """A mapping, some of whose values are fields."""

    values: Mapping[Any, Callable[[Tuple], Any]]

    def of(self, tup: Tuple) -> dict[Any, Any]:
        found = ((name, value(tup)) for name, value in self.values.items())
        return {name: value for name, value in found if value is not None}


@dataclass(frozen=True, slots=True)
class _Constant:
    """The same value for each tuple."""

    value: Any

    def of(self, _tup: Tuple) -> Any:
        return self.value


def field(name: str, default: Any = None) -> Any:
    """Take the value from this field of each tuple, and ``default`` where it is null.

    For settings of a bolt that may differ from tuple to tuple, as in
    ``QueueSink(exchange="events", routing_key=field("kind"), headers={"tenant": field("tenant")})``
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"field() takes the name of a field, not {name!r:.50}")
    return FromField(name, default)


def value_of(setting: Any) -> Callable[[Tuple], Any]:
    """Return a function from a tuple to the value of a setting: a constant, a ``field``, or a
    mapping that may have fields among its values; entries whose field is null are left out.
    """
    if isinstance(setting, FromField):
        return setting.of
    if isinstance(setting, Mapping) and any(fields_of(setting)):
        return _FromFields({name: value_of(value) for name, value in setting.items()}).of
    return _Constant(setting).of


def fields_of(setting: Any) -> Iterator[str]:
    """The names of the fields that a setting uses."""
    if isinstance(setting, FromField):
        yield setting.name
    elif isinstance(setting, Mapping):
        for value in setting.values():
            yield from fields_of(value)

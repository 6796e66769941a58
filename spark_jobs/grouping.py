"""Which tasks of a subscriber receive a tuple.

A choice depends on nothing but the tuple: its values, or its identity. Counters and salted hashes would choose another task
when Spark repeats the work, and the ledger would see other work.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from acker.ids import mix
from queues.schema import Schema
from spark_jobs.errors import TopologyError

Choose = Callable[[Sequence[Any], int], Sequence[int]]
"""(values, identity) to task ids; identity is a well-mixed 64-bit number of the emission."""

_CACHE = 100_000


class Grouping(ABC):
    """How a stream is spread over the tasks of one subscriber."""

    name = ""

    def validate(self, schema: Schema) -> None:  # noqa: B027 - most groupings have nothing to check
        """Raise TopologyError if the stream's fields do not do."""

    @abstractmethod
    def chooser(self, schema: Schema, tasks: Sequence[int]) -> Choose:
        """The choice among these tasks, lowest id first."""


class Shuffle(Grouping):
    """Each tuple to one task, evenly."""

    name = "shuffle"

    def chooser(self, schema: Schema, tasks: Sequence[int]) -> Choose:  # noqa: ARG002
        single = [(task,) for task in tasks]
        count = len(tasks)
        if count == 1:
            return lambda _values, _identity: single[0]
        return lambda _values, identity: single[(identity >> 32) % count]


@dataclass(frozen=True)
class Fields(Grouping):
    """Equal values of these fields to one task, across runs and machines."""

    fields: tuple[str, ...]
    name = "fields"

    def validate(self, schema: Schema) -> None:
        if not self.fields:
            raise TopologyError("a fields grouping needs at least one field")
        for field in self.fields:
            if field not in schema.names:
                raise TopologyError(f"there is no field {field!r} to group by; the fields are {', '.join(schema.names)}")

    def chooser(self, schema: Schema, tasks: Sequence[int]) -> Choose:
        positions = [schema.position(field) for field in self.fields]
        floats = [str(schema.fields[position].arrow) in ("float", "double") for position in positions]
        single = [(task,) for task in tasks]
        cache: dict[Any, tuple[int]] = {}

        def choose(values: Sequence[Any], _identity: int) -> Sequence[int]:
            key = values[positions[0]] if len(positions) == 1 else tuple(values[position] for position in positions)
            try:
                found = cache.get(key)
            except TypeError:  # a list: not hashable, hence not cached
                return single[_hash(values, positions, floats) % len(single)]
            if found is None:
                if len(cache) >= _CACHE:
                    cache.clear()
                found = cache[key] = single[_hash(values, positions, floats) % len(single)]
            return found

        return choose


class AllTasks(Grouping):
    """Each tuple to every task."""

    name = "all"

    def chooser(self, schema: Schema, tasks: Sequence[int]) -> Choose:  # noqa: ARG002
        everyone = tuple(tasks)
        return lambda _values, _identity: everyone


class Global(Grouping):
    """Each tuple to the task with the lowest id."""

    name = "global"

    def chooser(self, schema: Schema, tasks: Sequence[int]) -> Choose:  # noqa: ARG002
        lowest = (min(tasks),)
        return lambda _values, _identity: lowest


def _hash(values: Sequence[Any], positions: Sequence[int], floats: Sequence[bool]) -> int:
    """64 bits of the values as the stream's types see them: 1 and 1.0 are one value of a double column."""
    state = hashlib.blake2b(digest_size=8)
    for position, is_float in zip(positions, floats, strict=True):
        encoded = _encode(values[position], is_float=is_float)
        state.update(len(encoded).to_bytes(4, "big"))
        state.update(encoded)
    return mix(int.from_bytes(state.digest(), "big")) >> 32


def _encode(value: Any, *, is_float: bool) -> bytes:  # noqa: PLR0911 - one a type
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"b" + bytes(value)
    if isinstance(value, (list, tuple)):
        return b"l" + b",".join(_encode(item, is_float=is_float) for item in value)
    if is_float:
        return b"f" + (float(value) + 0.0).hex().encode()
    if isinstance(value, (bool, int)):
        return b"i" + str(int(value)).encode()
    return b"o" + str(value).encode()

"""Settings of a bolt that each tuple answers with one of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tiercel.spark_jobs.bolts.tuples import Tuple


@dataclass(frozen=True, slots=True)
class FromField:
    """A field of the tuple, in place of a constant: made by ``field``."""

    name: str
    # In place of a null.
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
    """The same for each tuple."""

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
    mapping that may have some among its values, whose nulls are then left out.
    """
    if isinstance(setting, FromField):
        return setting.of
    if isinstance(setting, Mapping) and any(fields_of(setting)):
        return _FromFields({name: value_of(value) for name, value in setting.items()}).of
    return _Constant(setting).of


def fields_of(setting: Any) -> Iterator[str]:
    """The names of the fields that a setting takes."""
    if isinstance(setting, FromField):
        yield setting.name
    elif isinstance(setting, Mapping):
        for value in setting.values():
            yield from fields_of(value)

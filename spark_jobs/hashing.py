"""A hash of a tuple's fields that is the same in every process and on every machine, for the
groupings by key. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from tiercel.acker.ids import mix
from tiercel.queues.errors import SchemaError
from tiercel.queues.values.python_values import TEXTS
from tiercel.queues.values.schema import UNFIT, Field, Schema
from tiercel.spark_jobs.errors import BadValuesError

# A tuple's values to 32 bits. Raises BadValuesError for a key that does not have its column's type.
KeyHash = Callable[[Sequence[Any]], int]
T = TypeVar("T")

# Keys remembered; a word that comes again costs one look-up.
_CACHE = 100_000
# Types that Arrow keeps as they are; everything else is hashed as it comes back from Arrow.
_EXACT: dict[pa.DataType, type] = {
    pa.string(): str,
    pa.binary(): bytes,
    pa.float64(): float,
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
}


def key_hash(schema: Schema, fields: Sequence[str]) -> KeyHash:
    """The hash of these fields."""
    find = by_key(schema, fields, lambda found: found)
    return lambda values: find(values, 0)


def by_key(
    schema: Schema, fields: Sequence[str], of: Callable[[int], T]
) -> Callable[[Sequence[Any], int], T]:
    """Return a function that applies ``of`` to the hash of these fields.

    It is asked once per key; a second argument of the result is ignored.

    The column decides what a value is: 1, 1.0 and a numpy integer are one value of a long column,
    two datetimes of one moment are one timestamp. Keys that Python calls equal are equal to the
    column too, so the cache may answer for them.
    """
    return _cached(schema, fields, lambda key: of(hash_values(key)))


def key_digest(schema: Schema, fields: Sequence[str]) -> Callable[[Sequence[Any]], bytes]:
    """Sixteen bytes that stand for the values of these fields, where 32 bits would be too few: two
    keys of flat columns do not meet.
    """
    find = _cached(schema, fields, lambda key: _hashed(key, 16))
    return lambda values: find(values, 0)


def _cached(
    schema: Schema, fields: Sequence[str], of: Callable[[Sequence[Any]], T]
) -> Callable[[Sequence[Any], int], T]:
    """Return a function that applies ``of`` to the values of these fields, once per key."""
    positions = [schema.position(field) for field in fields]
    compute = _without_cache(schema, fields, of)
    cache: dict[Any, T] = {}
    single = positions[0] if len(positions) == 1 else None

    def find(values: Sequence[Any], _identity: int) -> T:
        key = values[single] if single is not None else tuple([values[at] for at in positions])
        try:
            return cache[key]
        except TypeError:  # a list: not hashable, hence not cached
            return compute(values)
        except KeyError:
            if len(cache) >= _CACHE:
                cache.clear()
            found = cache[key] = compute(values)
            return found

    return find


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


def hash_values(key: Sequence[Any]) -> int:
    """The 32-bit hash of a key that has its columns' types: what ``key_hash`` gives for it."""
    return mix(int.from_bytes(_hashed(key, 8), "big")) >> 32


def _hashed(key: Sequence[Any], size: int) -> bytes:
    state = hashlib.blake2b(digest_size=size)
    for value in key:
        encoded = _encode(value)
        state.update(len(encoded).to_bytes(4, "big"))
        state.update(encoded)
    return state.digest()


def _encode(value: Any) -> bytes:  # noqa: PLR0911 - one a type
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, list):
        return b"l" + b",".join(map(_encode, value))
    if isinstance(value, float):
        return b"f" + (value + 0.0).hex().encode()  # -0.0 equals 0.0
    if isinstance(value, int):
        return b"i" + str(int(value)).encode()
    return b"o" + str(value).encode()

"""Types that the columns of a chunk may have, and the values that Python has for them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tiercel.acker.errors import BadChunkError

_LIST = pa.list_(pa.uint64())
# The types of ``queues.values.schema``, beside decimals and lists: each value has bytes of its own.
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
_DAYS = (-719_162, 2_932_896)  # of the years 1 to 9999, which Python has, since 1970
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
TIMES = {
    pa.date32(): _DAYS,
    pa.timestamp("us"): _MICROSECONDS,
    pa.timestamp("us", tz="UTC"): _MICROSECONDS,
}
_LEAST_SCALE = -38  # what pyarrow makes Python decimals of


def leaf_of(type_: pa.DataType) -> pa.DataType:
    """The type itself; of a list, that of its values."""
    while type_.id == _LIST.id:
        type_ = type_.value_type
    return type_


def is_plain(type_: pa.DataType) -> bool:
    if pa.types.is_decimal128(type_):
        return bool(_LEAST_SCALE <= type_.scale <= type_.precision)
    return type_ in _FLAT or type_ in TIMES


def check_times(column: pa.Array, type_: pa.DataType) -> None:
    """Arrow has the year 300,000, Python has not: no tuple could be made of it."""
    while column.type.id == _LIST.id:
        column = column.flatten()
    first, last = TIMES[type_]
    ends = pc.min_max(column.view(pa.int32() if type_ == pa.date32() else pa.int64()))
    if ends["min"].is_valid and not first <= ends["min"].as_py() <= ends["max"].as_py() <= last:
        raise BadChunkError(f"a {type_} is not within the years 1 to 9999")

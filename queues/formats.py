"""From the body of a message to the values of a tuple.

``text``: the body is UTF-8, for one string column. ``bytes``: the body as it is, for one binary
column. ``json``: an object, its members go to the columns of the same name; a missing member is
null, one too many is ignored. Nothing is converted silently: a value of another type, a number out
of range, a name that stands twice or NaN make the message a bad one. Binary columns are base64,
dates and timestamps ISO 8601 (a timestamp without an offset is UTC), decimals numbers or strings.

Whatever a body holds, it is decided in time in proportion to its bytes; for a JSON body of 16 MiB
in less than 384 MiB of memory beside it. What would take more, because it has more than a million
values, is refused first: ``json_text``.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

from tiercel.queues.decimals import MISFITS, decimal_for
from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.json_text import read_json
from tiercel.queues.schema import Schema
from tiercel.queues.values import TEXTS

Format = Literal["text", "json", "bytes"]
Decoder = Callable[[bytes], list[Any]]
# Returns the value for Arrow; raises one of MISFITS.
_Check = Callable[[Any], Any]

# From here on it rounds to infinity.
_LARGEST_FLOAT32 = 3.4028235677973366e38
_PREVIEW = 50
# More digits than any column has, and some hundred zeros; a Decimal of millions would
# take a gigabyte.
_DECIMAL_CHARACTERS = 500


def default_format(schema: Schema) -> Format:
    """``text`` for one string column, ``bytes`` for one binary column, else ``json``."""
    if len(schema.fields) == 1:
        if schema.fields[0].arrow == pa.string():
            return "text"
        if schema.fields[0].arrow == pa.binary():
            return "bytes"
    return "json"


def decoder_for(schema: Schema, format: Format | None = None) -> Decoder:  # noqa: A002 - the name that users see
    """A function from a body to the values of its tuple, which raises BadBodyError
    and nothing else.

    Raises SchemaError if the schema and the format do not go together.
    """
    chosen = format or default_format(schema)
    if chosen == "json":
        return _json_decoder(schema)
    if chosen not in ("text", "bytes"):
        raise SchemaError(f"there is no format {chosen!r}; use text, json or bytes")
    wanted = "string" if chosen == "text" else "binary"
    if default_format(schema) != chosen:
        raise SchemaError(
            f"the format {chosen!r} needs exactly one {wanted} column, not ({schema}); "
            "use json for these"
        )
    return _text if chosen == "text" else _bytes


def _text(body: bytes) -> list[Any]:
    try:
        return [body.decode()]
    except UnicodeDecodeError as error:
        raise BadBodyError(
            f"the body is not UTF-8 text: byte {error.start} is 0x{body[error.start]:02x}"
        ) from error


def _bytes(body: bytes) -> list[Any]:
    return [body]


def _json_decoder(schema: Schema) -> Decoder:
    columns = [(field.name, _check_for(field.arrow)) for field in schema.fields]

    def decode(body: bytes) -> list[Any]:
        value = read_json(body)
        if type(value) is not dict:
            raise BadBodyError(
                f"the body must be a JSON object with the fields ({schema}), it is {_shown(value)}"
            )
        get = value.get
        try:
            return [
                None if (member := get(name)) is None else check(member) for name, check in columns
            ]
        except MISFITS:
            raise _misfit(schema, value) from None

    return decode


def _misfit(schema: Schema, value: dict[str, Any]) -> BadBodyError:
    """Says which member did not fit; only for bodies that are bad already."""
    for field in schema.fields:
        member = value.get(field.name)
        try:
            if member is not None:
                _check_for(field.arrow)(member)
        except MISFITS:
            return BadBodyError(
                f"field {field.name!r} is a {field.type}, the body has {_shown(member)}"
            )
    return BadBodyError(f"the body does not fit the fields ({schema})")


def _shown(value: Any) -> str:
    # No repr of the whole: it could be megabytes, or an integer too long to print.
    kind = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }.get(type(value), "a number")
    if isinstance(value, str):
        return f"the string {value[:_PREVIEW]!r}{'…' if len(value) > _PREVIEW else ''}"
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 128):
        return f"{'' if isinstance(value, bool) else 'the number '}{json.dumps(value)}"
    return kind


def _check_for(type_: pa.DataType) -> _Check:
    if pa.types.is_list(type_):
        return _array(_check_for(type_.value_type))
    if pa.types.is_integer(type_):
        return _integer(type_.bit_width)
    if pa.types.is_floating(type_):
        return _floating(_LARGEST_FLOAT32 if type_.bit_width == 32 else math.inf)
    if pa.types.is_decimal(type_):
        return _decimal(type_)
    if pa.types.is_timestamp(type_):
        return _timestamp if type_.tz else _timestamp_ntz
    simple: dict[pa.DataType, _Check] = {
        pa.string(): _string,
        pa.binary(): _binary,
        pa.bool_(): _boolean,
        pa.date32(): _date,
        TEXTS: _texts,
    }
    return simple[type_]


def _string(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    if not value.isascii():
        value.encode()  # a lone surrogate ("\ud800") is a str, but no text
    return value


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise TypeError
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError from error


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _integer(bits: int) -> _Check:
    low = -(1 << bits - 1)
    high = (1 << bits - 1) - 1

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    return check


def _floating(bound: float) -> _Check:
    def check(value: Any) -> float:
        if type(value) is not float and type(value) is not int:
            raise TypeError
        number = float(value)
        if not -bound < number < bound:  # refuses infinity (1e999) too
            raise ValueError
        return number

    return check


def _decimal(type_: pa.DataType) -> _Check:
    exactly = decimal_for(type_)

    def check(value: Any) -> Decimal:
        if type(value) is float:
            value = repr(value)
        if type(value) is not str:
            return exactly(value)
        if len(value) > _DECIMAL_CHARACTERS:
            raise ValueError
        return exactly(Decimal(value))

    return check


def _date(value: Any) -> date:
    if type(value) is not str:
        raise TypeError
    return date.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    if type(value) is not str:
        raise TypeError
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _timestamp_ntz(value: Any) -> datetime:
    if type(value) is not str:
        raise TypeError
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is not None:
        raise ValueError
    return moment


def _texts(value: Any) -> dict[str, str | None]:
    if type(value) is not dict:
        raise TypeError
    return {_string(name): None if text is None else _string(text) for name, text in value.items()}


def _array(check: _Check) -> _Check:
    def check_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError
        return [None if item is None else check(item) for item in value]

    return check_all

"""From the body of a message to the values of a tuple, and back.

``text``: the body is UTF-8, for one string column. ``bytes``: the body as it is, for one binary
column. ``json``: an object whose members go to the columns of the same name; other members are
ignored. A missing member makes the body invalid, unless its column is optional or has a default.
Nothing is converted silently: a value of another type, null in a column that is not optional, a
number out of range, a duplicate name or NaN make it invalid too. Binary columns are base64, dates
and timestamps ISO 8601 (a timestamp without an offset is UTC), decimals numbers or strings.

Decoding any body takes time in proportion to its bytes; a JSON body of 16 MiB takes less than 384
MiB of additional memory. A body that would take more, because it has more than a million values, is
refused first: see ``json_values``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.nouns import with_article
from tiercel.queues.values.json_values import Check, check_for, read_json
from tiercel.queues.values.python_values import MISFITS
from tiercel.queues.values.schema import Field, Schema

Format = Literal["text", "json", "bytes"]
Decoder = Callable[[bytes], list[Any]]

_PREVIEW = 50
# Bounds on the number and the length of names in the error about a missing member.
_NAME = 30
_NAMED = 5


class _AbsentError(ValueError):
    """A body has no value for a column that needs one."""


def default_format(schema: Schema) -> Format:
    """Return ``text`` for one string column, ``bytes`` for one binary column, else ``json``."""
    if len(schema.fields) == 1:
        if schema.fields[0].arrow == pa.string():
            return "text"
        if schema.fields[0].arrow == pa.binary():
            return "bytes"
    return "json"


def decoder_for(schema: Schema, format: Format | None = None) -> Decoder:  # noqa: A002 - the name that users see
    """Return a function from a body to the values of its tuple, which raises only BadBodyError.

    Raises SchemaError if the format does not suit the schema.
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
    columns = [(field.name, check_for(field.arrow), _without(field)) for field in schema.fields]
    exact = schema.has_decimals

    def decode(body: bytes) -> list[Any]:
        value = object_in(body, f"the fields ({schema})", exact=exact)
        get = value.get
        try:
            return [
                absent(value) if (member := get(name)) is None else check(member)
                for name, check, absent in columns
            ]
        except MISFITS:
            raise _misfit(schema, value) from None

    return decode


def object_in(body: bytes, wanted: str, *, exact: bool = False) -> dict[str, Any]:
    """Parse a body that must be a JSON object with ``wanted``; ``exact`` is as for ``read_json``.

    Raises BadBodyError.
    """
    value = read_json(body, exact=exact)
    if type(value) is not dict:
        raise BadBodyError(f"the body must be a JSON object with {wanted}, it is {_shown(value)}")
    return value


def _without(field: Field) -> Callable[[dict[str, Any]], Any]:
    """Return a function that returns the value for a body in which the field is missing or null.

    The function raises one of MISFITS. Raises SchemaError for a default that does not fit the
    field.
    """
    name = field.name
    default: Any = None
    if field.default:
        try:
            default = check_for(field.arrow)(json.loads(field.default))
        except MISFITS:
            raise SchemaError(
                f"field {name!r} is {with_article(field.type)}, its default is {field.default:.50}"
            ) from None

    def absent(body: dict[str, Any]) -> Any:
        if name in body:
            if field.optional:
                return None
        elif field.optional or field.default:
            return default
        raise _AbsentError

    return absent


def member_of(body: dict[str, Any], field: Field, check: Check) -> Any:
    """Return the checked value of a field; raises BadBodyError with its name."""
    member = body.get(field.name)
    try:
        return _without(field)(body) if member is None else check(member)
    except _AbsentError:
        raise _absence(field.name, field.type, body) from None
    except MISFITS:
        raise BadBodyError(
            f"field {field.name!r} is {with_article(field.type)}, the body has {_shown(member)}"
        ) from None


def _misfit(schema: Schema, value: dict[str, Any]) -> BadBodyError:
    """Return the error naming the member that does not fit; only for bodies known to be invalid."""
    for field in schema.fields:
        try:
            member_of(value, field, check_for(field.arrow))
        except BadBodyError as error:
            return error
    return BadBodyError(f"the body does not fit the fields ({schema})")


def _absence(name: str, type_: str, value: dict[str, Any]) -> BadBodyError:
    """Return the error for a body in which a required value is null or missing."""
    if name in value:
        return BadBodyError(f"field {name!r} is {with_article(type_)}, the body has null")
    there = ", ".join(each[:_NAME] for each in islice(value, _NAMED)) or "nothing"
    more = ", …" if len(value) > _NAMED else ""
    return BadBodyError(
        f"the body has no {name!r}, which must be {with_article(type_)}; it has {there}{more}"
    )


def _shown(value: Any) -> str:
    """Return a value of a body in a few words."""
    # No repr of the whole value: it could be megabytes, or an integer too long to print.
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


def plain_body(value: Any) -> bytes:
    """Encode a string in UTF-8, or return bytes unchanged; raises TypeError for anything else."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"a body is a string or bytes, not the {type(value).__name__} {value!r:.50}")


def json_body(members: Iterable[tuple[str, Any]]) -> bytes:
    """Return a JSON object with these members, encoded by type.

    Binary is base64, dates and timestamps are ISO 8601, decimals are strings.

    Raises ValueError for NaN and infinity, which JSON lacks, and TypeError for a value of a type
    that no column has.
    """
    return _ENCODER.encode(dict(members)).encode()


def _member(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):  # includes datetime
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"the {type(value).__name__} {value!r:.50} cannot be written as JSON")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_member
)

"""From the body of a message to the values of a tuple, and back.

``text``: the body is UTF-8, for one string column. ``bytes``: the body as it is, for one binary
column. ``json``: an object whose members go to the columns of the same name, and those of an object
in it to the members of a struct; other members are ignored. A missing member makes the body
invalid, unless its column is optional or has a default. Nothing is converted silently: a value of
another type, null in a column that is not optional, a number out of range, a duplicate name or NaN
make it invalid too. Binary columns are base64, dates and timestamps ISO 8601 (a timestamp without
an offset is UTC), decimals numbers or strings.

Decoding any body takes time in proportion to its bytes; a JSON body of 16 MiB takes less than 384
MiB of additional memory. A body that would take more, because it has more than a million values, is
refused first: see ``json_values``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
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


class MadeError(ValueError):
    """A class refuses the members of a struct."""


class _InnerError(ValueError):
    """An item or a member does not fit."""

    def __init__(self, path: str, before: str, after: str) -> None:
        super().__init__(path)
        self._path = path
        # The text before the path, and the text after it.
        self._said = before, after

    def said(self, path: str) -> str:
        """Return the message, for the value at this path."""
        before, after = self._said
        return f"{before} {path + self._path!r}{after}"

    def below(self, step: str) -> _InnerError:
        """Return the same for the value around the item or member."""
        return _InnerError(step + self._path, *self._said)


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
    columns = [(field.name, check_of(field), _without(field)) for field in schema.fields]
    exact = schema.has_decimals
    wanted = f"the fields ({schema})"

    def decode(body: bytes) -> list[Any]:
        value = object_in(body, wanted, exact=exact)
        get = value.get
        try:
            return [
                absent(value) if (member := get(name)) is None else check(member)
                for name, check, absent in columns
            ]
        except MISFITS:
            raise _misfit(schema, value) from None

    return decode


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A class whose instances are made of the members of a struct.

    * ``make``: makes an instance; raises MadeError.
    * ``optional``: the members that a body may leave out, because the class has a default.
    * ``inner``: the classes of members, or of their items.
    """

    make: Callable[[dict[str, Any]], Any]
    optional: AbstractSet[str]
    inner: Mapping[str, Made]


def check_of(field: Field, made: Made | None = None) -> Check:
    """Return a function from a JSON value to the column's value, which raises one of MISFITS.

    With ``made``, its structs become instances of a class.
    """
    if pa.types.is_struct(field.arrow):
        return _struct(field, made)
    return _array(field.inner[0], made) if field.inner else check_for(field.arrow)


def _array(item: Field, made: Made | None) -> Check:
    check = check_of(item, made)

    def check_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError
        found: list[Any] = []
        try:
            for each in value:
                # Appended one by one: where it fails, their number is the position of the misfit.
                found.append(None if each is None else check(each))  # noqa: PERF401
        except MISFITS as error:
            at = len(found)
            raise _inner_error(f"[{at}]", item, {"": value[at]}, error) from None
        return found

    return check_all


def _struct(field: Field, made: Made | None) -> Check:
    inner: Mapping[str, Made] = {} if made is None else made.inner
    optional = frozenset() if made is None else made.optional
    members = [
        (member, member.name, check_of(member, inner.get(member.name)), _without(member))
        for member in field.inner
    ]

    def check_members(value: Any) -> Any:
        if type(value) is not dict:
            raise TypeError
        found = {}
        for member, name, check, absent in members:
            each = value.get(name)
            if each is None and name in optional and name not in value:
                continue
            try:
                found[name] = absent(value) if each is None else check(each)
            except MISFITS as error:
                raise _inner_error(f".{name}", member, value, error) from None
        return found if made is None else made.make(found)

    return check_members


def _inner_error(
    step: str, field: Field, around: Mapping[str, Any], error: Exception
) -> _InnerError:
    if isinstance(error, _InnerError):
        return error.below(step)
    if isinstance(error, MadeError):
        return _InnerError(step, "field", f": {error}")
    if field.name not in around:
        return _InnerError(step, "the body has no", f", which must be {field.kind}")
    return _InnerError(
        step, "field", f" is {field.kind}, the body has {_shown(around[field.name])}"
    )


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
            default = check_of(field)(json.loads(field.default))
        except MISFITS:
            raise SchemaError(
                f"field {name!r} is {field.kind}, its default is {field.default:.50}"
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
    except _InnerError as error:
        raise BadBodyError(error.said(field.name)) from None
    except MadeError as error:
        raise BadBodyError(f"field {field.name!r}: {error}") from None
    except MISFITS:
        raise BadBodyError(
            f"field {field.name!r} is {field.kind}, the body has {_shown(member)}"
        ) from None


def _misfit(schema: Schema, value: dict[str, Any]) -> BadBodyError:
    """Return the error naming the member that does not fit; only for bodies known to be invalid."""
    for field in schema.fields:
        try:
            member_of(value, field, check_of(field))
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
    found = dict(members)
    try:
        text = json_text(found)
    except ValueError:
        name = next(name for name, value in found.items() if not _has_numbers_of_json(value))
        raise ValueError(
            f"field {name!r} has NaN or infinity, which JSON lacks: emit None instead"
        ) from None
    return text.encode()


def _has_numbers_of_json(value: Any) -> bool:
    try:
        json_text(value)
    except ValueError:
        return False
    return True


def json_text(value: Any) -> str:
    """Return a value in JSON, encoded and refused as by ``json_body``."""
    return _ENCODER.encode(value)


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

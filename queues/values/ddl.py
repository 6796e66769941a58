"""Spark's DDL as it is written for streams: ``"word string, n long?, unit string DEFAULT 'kg'"``.

A question mark behind the type and ``DEFAULT`` are about bodies: see ``schema``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tiercel.queues.errors import SchemaError
from tiercel.queues.values.python_values import MOMENT, TEXTS

_FLAT: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": MOMENT,
    "timestamp_ntz": pa.timestamp("us"),
}
# None of these goes back over text that it has read: the time is in proportion to the length.
_NAME = re.compile(r"`[^`]+`|\w+")
_DEFAULT = re.compile(r"\bdefault\b\s*(?=\S)", re.IGNORECASE)
_QUOTED = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_DECIMAL = re.compile(r"(?:decimal|numeric)\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)")
_MAP = re.compile(r"map<\s*string\s*,\s*string\s*>")
_ARRAY = re.compile(r"array<(.+)>", re.DOTALL)
_MOST_CHARACTERS = 100_000
_MOST_ARRAYS = 16


class ReadColumn(NamedTuple):
    """One parsed column; it has the attributes of a ``Field``."""

    name: str
    type: str
    arrow: pa.DataType
    optional: bool
    default: str


def columns_of(ddl: str) -> Sequence[ReadColumn]:
    """Parse the columns; raises SchemaError with the fault and the valid forms."""
    if len(ddl) > _MOST_CHARACTERS:
        raise SchemaError(
            f"the schema {ddl!r:.50}… has {len(ddl):,} characters; write at most "
            f"{_MOST_CHARACTERS:,}"
        )
    return [_field(column, ddl) for column in _split(ddl)]


def _split(ddl: str) -> list[str]:
    """Cut at the commas outside of brackets and quotes."""
    if not ddl.strip():
        raise SchemaError('no fields; write Spark DDL such as "word string, n long"')
    columns = []
    begin = 0
    depth = 0
    quote = ""
    for position, character in enumerate(ddl):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += character in "(<["
            depth -= character in ")>]"
        if character == "," and depth == 0 and not quote:
            columns.append(ddl[begin:position])
            begin = position + 1
    return [*columns, ddl[begin:]]


def _field(column: str, ddl: str) -> ReadColumn:
    name, text = _name_and_type(column, ddl)
    if name.startswith("__"):
        raise SchemaError(
            f"the field name {name!r:.50} is reserved; do not begin it with two underscores"
        )
    found = _DEFAULT.search(text)
    type_ = (text[: found.start()] if found else text).rstrip()
    optional = type_.endswith("?")
    if optional:
        type_ = type_[:-1].rstrip()
    type_ = type_.lower()
    default = _default(text[found.end() :], name, ddl) if found else ""
    return ReadColumn(name, type_, _arrow(type_, ddl), optional, default)


def _name_and_type(column: str, ddl: str) -> tuple[str, str]:
    """Split a column into its name and the rest behind a blank or a colon."""
    text = column.strip()
    name = _NAME.match(text)
    behind = text[name.end() :] if name else ""
    type_ = behind.lstrip()
    if type_.startswith(":"):
        type_ = type_[1:].lstrip()
    elif type_ == behind:
        type_ = ""
    if name is None or not type_:
        raise SchemaError(
            f'cannot read {text!r:.50} in {ddl!r:.200}; write Spark DDL such as "word '
            'string, n long"'
        )
    return name[0].strip("`"), type_


def _default(text: str, name: str, ddl: str) -> str:
    """Read 'text' in single quotes, as in SQL, or a value of JSON; returns JSON."""
    if match := _QUOTED.fullmatch(text):
        return json.dumps(match[1].replace("''", "'"), ensure_ascii=False)
    try:
        value = json.loads(text)
        if value is not None:
            return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        raise SchemaError(
            f"cannot read the default {text!r:.50} of field {name!r:.50} in {ddl!r:.200}; write "
            "'text' in single quotes, or a value of JSON"
        ) from None
    raise SchemaError(
        f"field {name!r:.50} in {ddl!r:.200} cannot have the default null; write a question mark "
        "behind its type"
    )


def _arrow(type_: str, ddl: str) -> pa.DataType:
    inner = type_
    arrays = 0
    while (match := _ARRAY.fullmatch(inner)) and arrays < _MOST_ARRAYS:
        inner = match[1].strip()
        arrays += 1
    arrow = _plain(inner)
    # Lists of maps are not known.
    if arrow is None or (arrays and arrow is TEXTS):
        raise SchemaError(
            f"unknown type {type_!r:.50} in {ddl!r:.200}; use one of {', '.join(_FLAT)}, "
            "decimal(p,s), map<string,string> or array<type>, with at most "
            f"{_MOST_ARRAYS} arrays in one another"
        )
    for _ in range(arrays):
        arrow = pa.list_(arrow)
    return arrow


def _plain(type_: str) -> pa.DataType | None:
    """Return a type that is no array; None: it is not known."""
    if match := _DECIMAL.fullmatch(type_):
        precision = int(match[1])
        scale = int(match[2])
        known = 1 <= precision <= 38 and scale <= precision
        return pa.decimal128(precision, scale) if known else None
    return TEXTS if _MAP.fullmatch(type_) else _FLAT.get(type_)

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
_COLUMN = re.compile(r"\s*(`[^`]+`|\w+)\s*(?:\s|:)\s*(\S.*?)\s*")
_TYPE = re.compile(r"(.*?)\s*(\?)?\s*(?:\bdefault\b\s*(\S.*))?", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_DECIMAL = re.compile(r"(?:decimal|numeric)\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_MAP = re.compile(r"map<\s*string\s*,\s*string\s*>")
_ARRAY = re.compile(r"array<(.+)>")


class ReadColumn(NamedTuple):
    """One column as it was read; the attributes are those of a ``Field``."""

    name: str
    type: str
    arrow: pa.DataType
    optional: bool
    default: str


def columns_of(ddl: str) -> Sequence[ReadColumn]:
    """Read the columns; raises SchemaError that says what is wrong and what is allowed."""
    return [_field(column, ddl) for column in _split(ddl)]


def _split(ddl: str) -> list[str]:
    """Cut at the commas outside of brackets and quotes."""
    if not ddl.strip():
        raise SchemaError('no fields; write Spark DDL such as "word string, n long"')
    columns = [""]
    depth = 0
    quote = ""
    for character in ddl:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += character in "(<["
            depth -= character in ")>]"
        if character == "," and depth == 0 and not quote:
            columns.append("")
        else:
            columns[-1] += character
    return columns


def _field(column: str, ddl: str) -> ReadColumn:
    match = _COLUMN.fullmatch(column)
    if match is None:
        raise SchemaError(
            f'cannot read {column.strip()!r} in {ddl!r}; write Spark DDL such as "word '
            'string, n long"'
        )
    name = match[1].strip("`")
    parts = _TYPE.fullmatch(match[2])
    type_ = (parts[1] if parts else match[2]).lower()
    if name.startswith("__"):
        raise SchemaError(
            f"the field name {name!r} is reserved; do not begin it with two underscores"
        )
    optional = bool(parts and parts[2])
    default = _default(parts[3], name, ddl) if parts and parts[3] else ""
    return ReadColumn(name, type_, _arrow(type_, ddl), optional, default)


def _default(text: str, name: str, ddl: str) -> str:
    """Read 'text' in single quotes, as in SQL, or a value of JSON; returns JSON."""
    if match := _QUOTED.fullmatch(text):
        return json.dumps(match[1].replace("''", "'"), ensure_ascii=False)
    try:
        value = json.loads(text)
    except ValueError:
        raise SchemaError(
            f"cannot read the default {text!r:.50} of field {name!r} in {ddl!r}; write 'text' in "
            "single quotes, or a value of JSON"
        ) from None
    if value is None:
        raise SchemaError(
            f"field {name!r} in {ddl!r} cannot have the default null; write a question mark behind "
            "its type"
        )
    return json.dumps(value, ensure_ascii=False)


def _arrow(type_: str, ddl: str) -> pa.DataType:
    if type_ in _FLAT:
        return _FLAT[type_]
    if match := _DECIMAL.fullmatch(type_):
        precision = int(match[1])
        scale = int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    if (match := _ARRAY.fullmatch(type_)) and not _MAP.fullmatch(inner := match[1].strip()):
        return pa.list_(_arrow(inner, ddl))
    if _MAP.fullmatch(type_):
        return TEXTS
    allowed = ", ".join(_FLAT)
    raise SchemaError(
        f"unknown type {type_!r} in {ddl!r}; use one of {allowed}, decimal(p,s), "
        "map<string,string> or array<type>"
    )

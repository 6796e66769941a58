"""The typed columns of a stream, written in Spark's DDL: ``"word string, n long"``.

One parser serves the spouts (JSON bodies to typed values), the collectors (checking emitted values)
and Arrow (the chunks). Types are Spark's:
https://spark.apache.org/docs/latest/sql-ref-datatypes.html. Columns are flat, maps of texts, or
nested: ``items array<struct<sku string, price double?>>``. Structs and maps are dictionaries in
Python.

``customer string?`` may be missing from a body, or null there; ``currency string DEFAULT 'EUR'``
may be missing. All other members are required, those of a struct too. This applies to bodies only:
bolts may emit None.

The parser of this DDL comes first, then the columns.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import pyarrow as pa

from tiercel.queues.errors import SchemaError
from tiercel.queues.nouns import with_article
from tiercel.queues.values.python_values import (
    LOCAL,
    MISFITS,
    MOMENT,
    SURELY,
    TEXTS,
    Convert,
    Member,
    exactly,
    exactly_items,
    exactly_members,
    holds,
    is_in_pythons_years,
    members_in,
)

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
    "timestamp_ntz": LOCAL,
}
# None of these patterns backtracks: the time is in proportion to the length.
_NAME = re.compile(r"`[^`]+`|\w+")
_WORD = re.compile(r"\w+")
_BRACKETS = re.compile(r"(?:array|struct|map)\s*<", re.IGNORECASE)
_DEFAULT = re.compile(r"\bdefault\b\s*(?=\S)", re.IGNORECASE)
_QUOTED = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_DECIMAL = re.compile(r"(?:decimal|numeric)\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)")
_MAP = re.compile(r"map<\s*string\s*,\s*string\s*>")
_ARRAY = re.compile(r"array<(.+)>", re.DOTALL | re.IGNORECASE)
_STRUCT = re.compile(r"struct\s*<(.*)>", re.DOTALL | re.IGNORECASE)
_MOST_CHARACTERS = 100_000
_DEEPEST = 16
_KIND_CHARACTERS = 60


def columns_of(ddl: str) -> Sequence[Field]:
    """Parse the columns; raises SchemaError with the fault and the valid forms."""
    if not isinstance(ddl, str):
        raise SchemaError(
            f'fields are a text in Spark DDL, such as "word string, n long", not {ddl!r:.50}'
        )
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
    for position, character, depth in _outside_quotes(ddl):
        if character == "," and depth == 0:
            columns.append(ddl[begin:position])
            begin = position + 1
    return [*columns, ddl[begin:]]


def _outside_quotes(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield each character outside of quotes, with its position and the number of open brackets."""
    depth = 0
    quote = ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += character in "(<["
            depth -= character in ")>]"
            yield position, character, depth


def _end_of_type(text: str) -> int:
    """Return the end of a type with brackets: the text behind it may be a DEFAULT."""
    if _BRACKETS.match(text):
        for position, character, depth in _outside_quotes(text):
            if character == ">" and depth == 0:
                return position + 1
    return 0


def _field(column: str, ddl: str, depth: int = 0) -> Field:
    name, text = _name_and_type(column, ddl)
    if name.startswith("__") and depth == 0:
        raise SchemaError(
            f"the field name {name!r:.50} is reserved; do not begin it with two underscores"
        )
    found = _DEFAULT.search(text, _end_of_type(text))
    type_ = (text[: found.start()] if found else text).rstrip()
    optional = type_.endswith("?")
    if optional:
        type_ = type_[:-1].rstrip()
    default = _default(text[found.end() :], name, ddl) if found else ""
    type_, arrow, inner = _typed(type_, ddl, depth)
    return Field(name, type_, arrow, optional, default, inner)


def _name_and_type(column: str, ddl: str) -> tuple[str, str]:
    """Split a column into its name and the rest after a blank or a colon."""
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
    """Read 'text' in single quotes, as in SQL, or a JSON value; return JSON."""
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


def _typed(type_: str, ddl: str, depth: int) -> tuple[str, pa.DataType, tuple[Field, ...]]:
    """Return a type as messages write it, in Arrow, and its items or members.

    ``depth`` is the number of arrays and structs around it.
    """
    leaf = type_
    arrays = 0
    while (match := _ARRAY.fullmatch(leaf)) and depth + arrays < _DEEPEST:
        leaf = match[1].strip()
        arrays += 1
    inner: tuple[Field, ...] = ()
    if (match := _STRUCT.fullmatch(leaf)) and depth + arrays < _DEEPEST:
        inner = _members(match[1], type_, ddl, depth + arrays + 1)
        leaf = f"struct<{', '.join(map(_member_text, inner))}>"
        arrow = pa.struct([(member.name, member.arrow) for member in inner])
    else:
        leaf = leaf.lower()
        arrow = _plain(leaf)
    # Maps are supported as columns only.
    if arrow is None or (arrow is TEXTS and depth + arrays):
        raise SchemaError(
            f"unknown type {type_.lower()!r:.50} in {ddl!r:.200}; use one of {', '.join(_FLAT)}, "
            "decimal(p,s), struct<name type, …>, map<string,string> or array<type>, with at most "
            f"{_DEEPEST} arrays in one another, structs included, and no map in them"
        )
    for _ in range(arrays):
        inner = (Field("", leaf, arrow, inner=inner),)
        leaf = f"array<{leaf}>"
        arrow = pa.list_(arrow)
    return leaf, arrow, inner


def _members(text: str, type_: str, ddl: str, depth: int) -> tuple[Field, ...]:
    if not text.strip():
        raise SchemaError(
            f"the struct {type_!r:.50} in {ddl!r:.200} has no members; write struct<name type, …>"
        )
    members = tuple(_field(column, ddl, depth) for column in _split(text))
    _refuse_twice([member.name for member in members], type_)
    return members


def _member_text(member: Field) -> str:
    text = str(member)
    return text if _WORD.fullmatch(member.name) else f"`{member.name}`{text[len(member.name) :]}"


def _refuse_twice(names: Sequence[str], ddl: str) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise SchemaError(
            f"{ddl!r:.200} names the field {min(twice)!r:.50} twice; give each field its own name"
        )


def _plain(type_: str) -> pa.DataType | None:
    """Return a type that is not an array; None if the type is unknown."""
    if match := _DECIMAL.fullmatch(type_):
        precision = int(match[1])
        scale = int(match[2])
        known = 1 <= precision <= 38 and scale <= precision
        return pa.decimal128(precision, scale) if known else None
    return TEXTS if _MAP.fullmatch(type_) else _FLAT.get(type_)


# Raised by Arrow and by us for a value that does not fit its column; the value's own code, which a
# conversion calls, may raise anything else, even SystemExit.
UNFIT = (pa.ArrowException, *MISFITS)
_ANY = (Exception, SystemExit)

# Python type of a column: Arrow accepts all of its values, or all within the column's bits.
_PYTHON: dict[pa.DataType, type] = {
    pa.string(): str,
    pa.binary(): bytes,
    pa.bool_(): bool,
    pa.float64(): float,
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
}


@dataclass(frozen=True)
class Field:
    """One column.

    * ``name``: its name.
    * ``type``: its type as in the DDL, in lower case, apart from the names in a struct.
    * ``arrow``: its type in Arrow.
    * ``optional``: True: a body may leave it out, or have null.
    * ``default``: the value for a body that leaves it out, as JSON; empty: there is none.
    * ``inner``: the members of a struct; or the items of an array, one field without a name.
    """

    name: str
    type: str
    arrow: pa.DataType
    optional: bool = False
    default: str = ""
    inner: tuple[Field, ...] = ()

    def __str__(self) -> str:
        optional = "?" if self.optional else ""
        default = f" DEFAULT {self.default}" if self.default else ""
        return f"{self.name} {self.type}{optional}{default}"

    @property
    def kind(self) -> str:
        """Its type for a message, with an article; a long one is cut."""
        text = with_article(self.type)
        return text if len(text) <= _KIND_CHARACTERS else f"{text[:_KIND_CHARACTERS]}…"

    @property
    def is_key(self) -> bool:
        """True if equal values can be recognised, which is not possible for maps and structs."""
        return not holds(self.arrow, lambda each: pa.types.is_struct(each) or each == TEXTS)

    def takes_all(self, column: Sequence[Any]) -> bool:
        """Return True if the types of these values prove that all fit; else check each."""
        known = _PYTHON.get(self.arrow)
        return known is None or set(map(type, column)) <= {known, type(None)}

    def array(self, column: Sequence[Any]) -> pa.Array:
        """Convert the values for Arrow, which would change some silently; raises one of UNFIT."""
        convert = self.conversion
        array = pa.array(
            column if convert is None else [convert(value) for value in column], self.arrow
        )
        if self._has_times and not is_in_pythons_years(array):
            raise ValueError("not within the years 1 to 9999")
        return array

    @cached_property
    def conversion(self) -> Convert:
        """The conversion of its values for Arrow."""
        if pa.types.is_struct(self.arrow):
            return exactly_members(
                {
                    one.name: Member(type=one.arrow, convert=one.conversion, optional=one.optional)
                    for one in self.inner
                }
            )
        if self.inner:
            return exactly_items(self.inner[0].arrow, self.inner[0].conversion)
        return exactly(self.arrow)

    @cached_property
    def _has_times(self) -> bool:
        return holds(self.arrow, pa.types.is_temporal)

    @cached_property
    def _surely(self) -> Callable[[Any], bool] | None:
        return SURELY.get(self.arrow)

    def fits(self, value: Any) -> bool:
        """Return True if Arrow accepts the value (or None) for this column.

        Takes a fraction of a microsecond for the common types.
        """
        if value is None:
            return True
        known = _PYTHON.get(self.arrow)
        if known is not None and type(value) is known:
            if isinstance(value, int) and known is int:
                bits: int = self.arrow.bit_width - 1
                return -(1 << bits) <= value < 1 << bits
            if not isinstance(value, str) or value.isascii():
                return True
        try:
            return self._takes(value)
        except _ANY:
            return False

    def _takes(self, value: Any) -> bool:
        """Return True if Arrow accepts the value; else return False or raise any error."""
        if self._surely is not None and self._surely(value):
            return True
        if _PYTHON.get(self.arrow) is int and not isinstance(value, Integral):
            return False  # Arrow would cut a fraction off
        self.array([value])
        return True


@dataclass(frozen=True)
class Schema:
    """The columns of one stream, in order."""

    fields: tuple[Field, ...]

    @classmethod
    def parse(cls, ddl: str) -> Schema:
        """Parse Spark DDL; raises SchemaError with the fault and the valid forms."""
        fields = tuple(columns_of(ddl))
        _refuse_twice([field.name for field in fields], ddl)
        return cls(fields)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The field names, in order."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([(field.name, field.arrow) for field in self.fields])

    @cached_property
    def has_decimals(self) -> bool:
        """True if a column has decimals, or lists of decimals."""
        return any("decimal128" in str(field.arrow) for field in self.fields)

    def position(self, name: str) -> int:
        """Return the index of a field; raises SchemaError naming the existing fields."""
        try:
            return self.names.index(name)
        except ValueError:
            raise SchemaError(
                f"there is no field {name!r}; the fields are {', '.join(self.names)}"
            ) from None

    def check(self, values: Sequence[Any]) -> None:
        """Raise SchemaError unless ``values`` has one fitting value (or None) per field."""
        if isinstance(values, (str, bytes)):
            raise SchemaError(
                f"values must be a list, one value per field ({self}), not the "
                f"{type(values).__name__} {values!r:.50}"
            )
        if len(values) != len(self.fields):
            raise SchemaError(
                f"got {len(values)} values for the {len(self.fields)} fields ({self})"
            )
        for field, value in zip(self.fields, values, strict=True):
            if not field.fits(value):
                raise SchemaError(_described(field, value))

    def batch(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Return the rows as one record batch; raises SchemaError for the first misfit."""
        columns = list(zip(*rows, strict=True)) if rows else [() for _ in self.fields]
        if any(
            not field.takes_all(column) for column, field in zip(columns, self.fields, strict=True)
        ):
            for row in rows:
                self.check(row)
        try:
            arrays = [
                field.array(column) for column, field in zip(columns, self.fields, strict=True)
            ]
        except _ANY:
            for row in rows:
                self.check(row)
            raise
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))


def _described(field: Field, value: Any) -> str:
    try:
        return _misfit(field, value, field.name)
    except _ANY as error:
        kind = with_article(type(value).__name__)
        return (
            f"field {field.name!r} is {field.kind}, the value is {kind} that cannot be read: it "
            f"raises {with_article(type(error).__name__)}"
        )


def _misfit(field: Field, value: Any, path: str) -> str:
    """Describe the innermost part of a value that does not fit its field, with its path."""
    if pa.types.is_struct(field.arrow):
        return _member_misfit(field, value, path)
    if field.inner and isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            if not field.fits([item]):
                return _misfit(field.inner[0], item, f"{path}[{at}]")
    return _other_type(field, value, path)


def _member_misfit(field: Field, value: Any, path: str) -> str:
    known = [member.name for member in field.inner]
    given = members_in(value, known)
    if given is not None:
        for member in field.inner:
            if member.name not in given:
                if not member.optional:
                    return f"field {path!r} has no {member.name!r}, which must be {member.kind}"
            elif not member.fits(given[member.name]):
                return _misfit(member, given[member.name], f"{path}.{member.name}")
        others = [name for name in given if name not in known]
        if others:
            return (
                f"field {path!r} has no member {others[0]!r:.50}; its members are "
                f"{', '.join(known)}"
            )
    return _other_type(field, value, path)


def _other_type(field: Field, value: Any, path: str) -> str:
    return (
        f"field {path!r} is {field.kind}, the value is the {type(value).__name__} {_shown(value)}"
    )


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.50}"
    except ValueError:
        # an integer of more than 4,300 digits, somewhere in it
        return "that is too long to be shown"

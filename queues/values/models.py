"""Dataclasses and pydantic models instead of fields: columns, and a validating decoder.

The columns are the model's fields: ``str`` is a string, ``int`` a long, ``float`` a double, and so
on; ``X | None`` is optional, ``list[X]`` an array. ``Annotated[Decimal, "decimal(10,2)"]``
overrides the column's type. Any other field of a pydantic model, such as a nested model, an enum or
a URL, is a string: its text, or its JSON.

A body is JSON. If the model raises an error, that is the reason of the dead letter. pydantic is not
imported here: the module of the model has imported it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin

from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.values.formats import Decoder, Format, member_of, object_in
from tiercel.queues.values.json_values import check_for, read_json
from tiercel.queues.values.schema import Schema

_FLAT: Mapping[Any, str] = {
    str: "string",
    bytes: "binary",
    bool: "boolean",
    int: "long",
    float: "double",
    Decimal: "decimal(38,18)",
    date: "date",
    datetime: "timestamp",
}
_SAID_CHARACTERS = 300
_DEFAULT_FIELDS = "body string"


def fields_of(model: type[Any]) -> str:
    """Return the columns of a model, in Spark's DDL.

    Raises SchemaError for a class that is not a model, and for a field of a dataclass whose type no
    column has.
    """
    return ", ".join(f"`{name}` {_ddl(column)}" for name, column in _columns(model).items())


def body_fields(fields: str | None, model: type[Any] | None, format_: Format | None) -> str:
    """Return the columns of a body, given in DDL or by a model; by default one text column.

    Raises SchemaError, and ValueError if both are given.
    """
    if model is None:
        return fields or _DEFAULT_FIELDS
    if fields is not None or format_ not in (None, "json"):
        raise ValueError("a model takes the place of fields, and its bodies are JSON")
    return fields_of(model)


def model_decoder(model: type[Any]) -> Decoder:
    """Return a function from a body to the values of its tuple, which raises only BadBodyError.
    Raises SchemaError as ``fields_of`` does.
    """
    columns = _columns(model)
    return _pydantic(model, columns) if _is_pydantic(model) else _dataclass(model, columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    """One field of a model as a column."""

    # In Spark's DDL; None: its text, or its JSON.
    type: str | None
    optional: bool


def _ddl(column: _Column) -> str:
    return f"{column.type or 'string'}{'?' if column.optional else ''}"


def _is_pydantic(model: Any) -> bool:
    return isinstance(model, type) and hasattr(model, "model_validate_json")


def _columns(model: type[Any]) -> dict[str, _Column]:
    if _is_pydantic(model):
        found = {
            name: _column(info.annotation, tuple(info.metadata))
            for name, info in model.model_fields.items()
        }
    elif isinstance(model, type) and dataclasses.is_dataclass(model):
        found = _columns_of_dataclass(model)
    else:
        raise SchemaError(f"a model is a dataclass or a pydantic model, not {model!r:.80}")
    if not found:
        raise SchemaError(f"the model {model.__name__} has no fields")
    return found


def _columns_of_dataclass(model: type[Any]) -> dict[str, _Column]:
    hints = typing.get_type_hints(model, include_extras=True)
    found = {}
    for field in dataclasses.fields(model):
        if not field.init:
            continue
        column = _column(hints[field.name])
        if column.type is None:
            raise SchemaError(
                f"field {field.name!r} of {model.__name__} has the type {hints[field.name]!s:.80}: "
                f"use {', '.join(flat.__name__ for flat in _FLAT)}, a list of these, or a pydantic "
                "model"
            )
        found[field.name] = column
    return found


def _column(annotation: Any, metadata: tuple[Any, ...] = ()) -> _Column:
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata += tuple(more)
        elif get_origin(annotation) in (Union, types.UnionType):
            kept = [each for each in get_args(annotation) if each is not type(None)]
            optional = optional or len(kept) < len(get_args(annotation))
            if len(kept) > 1:
                return _Column(type=_said(metadata), optional=optional)
            annotation = kept[0]
        else:
            return _Column(type=_said(metadata) or _type_of(annotation), optional=optional)


def _said(metadata: tuple[Any, ...]) -> str | None:
    """Return the type that an annotation gives in DDL, or as the digits of a decimal."""
    for each in metadata:
        if isinstance(each, str):
            return each
    digits = next((d for each in metadata if (d := getattr(each, "max_digits", None))), None)
    places = next((d for each in metadata if (d := getattr(each, "decimal_places", None))), None)
    return f"decimal({digits},{places})" if digits and places is not None else None


def _type_of(annotation: Any) -> str | None:
    if get_origin(annotation) is list and get_args(annotation):
        inner = _column(get_args(annotation)[0])
        return None if inner.type is None else f"array<{inner.type}>"
    return _FLAT.get(annotation)


def _dataclass(model: type[Any], columns: Mapping[str, _Column]) -> Decoder:
    schema = Schema.parse(fields_of(model))
    checks = [(field, check_for(field.arrow)) for field in schema.fields]
    has_default = {
        field.name
        for field in dataclasses.fields(model)
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    }

    def decode(body: bytes) -> list[Any]:
        value = object_in(body, f"the fields ({schema})", exact=schema.has_decimals)
        given = {
            field.name: member_of(value, field, check)
            for field, check in checks
            if field.name in value or field.name not in has_default
        }
        made = _validated(model, lambda: model(**given))
        return [getattr(made, name) for name in columns]

    return decode


def _pydantic(model: Any, columns: Mapping[str, _Column]) -> Decoder:
    texts = {name for name, column in columns.items() if column.type is None}

    def decode(body: bytes) -> list[Any]:
        # First, since it is bounded, and stricter with duplicate names.
        read_json(body)
        made = _validated(model, lambda: model.model_validate_json(body))
        found = made.model_dump(mode="json", include=texts) if texts else {}
        return [_text(found[name]) if name in texts else getattr(made, name) for name in columns]

    return decode


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _validated(model: type[Any], make: Callable[[], Any]) -> Any:
    # A validator may raise anything, and one message must not affect others.
    try:
        return make()
    except Exception as error:
        raise BadBodyError(f"{model.__name__}: {_reason(error)}"[:_SAID_CHARACTERS]) from error


def _reason(error: Exception) -> str:
    """Return the error of a validator in one line; for pydantic its first error, with the field."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        # Without the input: a body may be confidential, and megabytes long.
        first, *more = errors(include_url=False, include_input=False, include_context=False)
        place = ".".join(map(str, first["loc"]))
        named = f"field {place!r}: {first['msg']}" if place else str(first["msg"])
        return " ".join(f"{named}{f' (and {len(more)} more)' if more else ''}".split())
    return " ".join(f"{type(error).__name__}: {error}".split())

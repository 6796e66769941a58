"""Dataclasses and pydantic models instead of fields: columns, and a validating decoder.

The columns are the model's fields: ``str`` is a string, ``int`` a long, ``float`` a double, and so
on; ``X | None`` is optional, ``list[X]`` an array, a model inside a model a struct.
``Annotated[Decimal, "decimal(10,2)"]`` overrides the column's type. Any other field of a pydantic
model, such as an enum or a URL, is a string: its text, or its JSON. ``Annotated[Item, "string"]``
makes it a string too.

A body is JSON. If the model raises an error, that is the reason of the dead letter. pydantic is not
imported here: the module of the model has imported it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin

from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.values.formats import (
    Decoder,
    Format,
    Made,
    MadeError,
    check_of,
    member_of,
    object_in,
)
from tiercel.queues.values.json_values import read_json
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
    return _ddl(_columns(model))


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
    optional: bool = False
    # The model of the struct, or of the structs in its arrays.
    model: _Model | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """A model inside a model."""

    made: type[Any]
    columns: Mapping[str, _Column]


def _ddl(columns: Mapping[str, _Column]) -> str:
    return ", ".join(
        f"`{name}` {column.type or 'string'}{'?' if column.optional else ''}"
        for name, column in columns.items()
    )


def _is_pydantic(model: Any) -> bool:
    return isinstance(model, type) and hasattr(model, "model_validate_json")


def _is_dataclass(model: Any) -> bool:
    return isinstance(model, type) and dataclasses.is_dataclass(model)


def _columns(model: type[Any], around: tuple[Any, ...] = ()) -> dict[str, _Column]:
    """Return the columns of a model inside other models."""
    around = (*around, model)
    if _is_pydantic(model):
        # A class that another one names may be defined after it: pydantic looks for it only at the
        # first body, and the field would be text until then.
        with _annotations_of(model):
            model.model_rebuild()
        found = {
            name: _column(info.annotation, tuple(info.metadata), around)
            for name, info in model.model_fields.items()
        }
    elif _is_dataclass(model):
        found = _columns_of_dataclass(model, around)
    else:
        raise SchemaError(f"a model is a dataclass or a pydantic model, not {model!r:.80}")
    if not found:
        raise SchemaError(f"the model {model.__name__} has no fields")
    return found


@contextmanager
def _annotations_of(model: type[Any]) -> Iterator[None]:
    try:
        yield
    except NameError as error:
        raise SchemaError(
            f"an annotation of {model.__name__} names {error.name!r}, which is not defined: import "
            "it in the module of the model, and not under `if TYPE_CHECKING`"
        ) from error


def _columns_of_dataclass(model: type[Any], around: tuple[Any, ...]) -> dict[str, _Column]:
    with _annotations_of(model):
        hints = typing.get_type_hints(model, include_extras=True)
    found = {}
    for field in dataclasses.fields(model):
        if not field.init:
            continue
        column = _column(hints[field.name], around=around)
        if column.type is None:
            raise SchemaError(
                f"field {field.name!r} of {model.__name__} has the type {hints[field.name]!s:.80}: "
                f"use {', '.join(flat.__name__ for flat in _FLAT)}, another dataclass, a list of "
                f"these, or a pydantic model in place of {model.__name__}"
            )
        found[field.name] = column
    return found


def _column(
    annotation: Any, metadata: tuple[Any, ...] = (), around: tuple[Any, ...] = ()
) -> _Column:
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
            said = _said(metadata)
            if said is None:
                return dataclasses.replace(_typed(annotation, around), optional=optional)
            # A pydantic model writes any field as text.
            is_text = said == "string" and annotation is not str and _is_pydantic(around[-1])
            return _Column(type=None if is_text else said, optional=optional)


def _said(metadata: tuple[Any, ...]) -> str | None:
    """Return the type that an annotation gives in DDL, or as the digits of a decimal."""
    for each in metadata:
        if isinstance(each, str):
            return each
    digits = next((d for each in metadata if (d := getattr(each, "max_digits", None))), None)
    places = next((d for each in metadata if (d := getattr(each, "decimal_places", None))), None)
    return f"decimal({digits},{places})" if digits and places is not None else None


def _typed(annotation: Any, around: tuple[Any, ...]) -> _Column:
    if get_origin(annotation) is list and get_args(annotation):
        inner = _column(get_args(annotation)[0], around=around)
        type_ = None if inner.type is None else f"array<{inner.type}>"
        return _Column(type=type_, model=inner.model)
    if _is_inner(annotation, around[-1]) and annotation not in around:
        try:
            columns = _columns(annotation, around)
        except SchemaError:
            if _is_dataclass(around[-1]):
                raise
        else:
            return _Column(
                type=f"struct<{_ddl(columns)}>", model=_Model(made=annotation, columns=columns)
            )
    return _Column(type=_FLAT.get(annotation))


def _is_inner(annotation: Any, around: Any) -> bool:
    """Return True for a model that is a struct inside this model. A dataclass validates itself, so
    it holds dataclasses only; the JSON of a RootModel is no object.
    """
    if _is_pydantic(annotation):
        return _is_pydantic(around) and not getattr(annotation, "__pydantic_root_model__", False)
    return _is_dataclass(annotation)


def _dataclass(model: type[Any], columns: Mapping[str, _Column]) -> Decoder:
    schema = Schema.parse(fields_of(model))
    made = _made(model, columns)
    checks = [(field, check_of(field, made.inner.get(field.name))) for field in schema.fields]
    wanted, exact = f"the fields ({schema})", schema.has_decimals

    def decode(body: bytes) -> list[Any]:
        value = object_in(body, wanted, exact=exact)
        given = {
            field.name: member_of(value, field, check)
            for field, check in checks
            if field.name in value or field.name not in made.optional
        }
        try:
            return list(_members(made.make(given), columns).values())
        except MadeError as error:
            raise BadBodyError(str(error)) from error

    return decode


def _made(model: type[Any], columns: Mapping[str, _Column]) -> Made:
    return Made(
        make=lambda given: _validated(model, lambda: model(**given)),
        optional={
            field.name
            for field in dataclasses.fields(model)
            if field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        },
        inner={
            name: _made(column.model.made, column.model.columns)
            for name, column in columns.items()
            if column.model is not None
        },
    )


def _members(made: Any, columns: Mapping[str, _Column]) -> dict[str, Any]:
    """Return the values of the columns of an instance."""
    texts = {name for name, column in columns.items() if column.type is None}
    found = made.model_dump(mode="json", include=texts) if texts else {}
    return {
        name: _text(found[name]) if name in texts else _value(getattr(made, name), column.model)
        for name, column in columns.items()
    }


def _value(value: Any, model: _Model | None) -> Any:
    """Return a value with dictionaries in the place of models."""
    if model is None or value is None:
        return value
    if isinstance(value, list):
        return [_value(each, model) for each in value]
    return _members(value, model.columns)


def _pydantic(model: Any, columns: Mapping[str, _Column]) -> Decoder:
    def decode(body: bytes) -> list[Any]:
        # First, since it is bounded, and stricter with duplicate names.
        read_json(body)
        try:
            made = _validated(model, lambda: model.model_validate_json(body))
        except MadeError as error:
            raise BadBodyError(str(error)) from error
        return list(_members(made, columns).values())

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
        raise MadeError(f"{model.__name__}: {_reason(error)}"[:_SAID_CHARACTERS]) from error


def _reason(error: Exception) -> str:
    """Return the error of a validator in one line; for pydantic its first error, with the field."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        # Without the input: a body may be confidential, and megabytes long.
        first, *more = errors(include_url=False, include_input=False, include_context=False)
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]]
        place = "".join(steps).removeprefix(".")
        named = f"field {place!r}: {first['msg']}" if place else str(first["msg"])
        return " ".join(f"{named}{f' (and {len(more)} more)' if more else ''}".split())
    return " ".join(f"{type(error).__name__}: {error}".split())

"""Dataclasses and pydantic models instead of fields."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional

import pydantic
import pytest

from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.values.models import fields_of, model_decoder
from tiercel.queues.values.schema import Schema


@dataclass
class Order:
    order: int
    customer: str
    amount: Annotated[Decimal, "decimal(10,2)"]
    note: str | None
    unit: str = "kg"
    tags: list[str] = dataclasses.field(default_factory=lambda: ["new"])
    made: str = dataclasses.field(init=False, default="here")

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("an amount is\nnot negative")
        self.customer = self.customer.strip()


class Colour(enum.Enum):
    RED = "red"


class Address(pydantic.BaseModel):
    street: str


class Invoice(pydantic.BaseModel):
    number: int = pydantic.Field(gt=0, alias="no")
    customer: str
    amount: Annotated[Decimal, pydantic.Field(max_digits=10, decimal_places=2)]
    note: Optional[str] = None  # noqa: UP045 - the older spelling, which users have too
    at: datetime = datetime(2024, 2, 29, tzinfo=UTC)
    address: Address | None = None
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    lines: list[Address] = []
    tags: list[str] = []

    @pydantic.field_validator("customer")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "unknown":
            raise ValueError("there is no such customer")
        return value


FULL = b'{"order": 1, "customer": " ann ", "amount": "12.3", "note": null, "tags": [], "more": 1}'


def test_the_columns_of_a_dataclass_are_its_fields():
    assert fields_of(Order) == (
        "`order` long, `customer` string, `amount` decimal(10,2), `note` string?, `unit` string, "
        "`tags` array<string>"
    )


def test_a_dataclass_is_made_of_the_body_and_its_values_are_those_of_the_instance():
    decode = model_decoder(Order)
    assert decode(FULL) == [1, "ann", Decimal("12.30"), None, "kg", []]
    assert decode(b'{"order": 1, "customer": "b", "amount": 1}') == [
        1, "b", Decimal(1), None, "kg", ["new"],
    ]  # fmt: skip
    assert Schema.parse(fields_of(Order)).batch([decode(FULL)]).num_rows == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "the body is not JSON"),
        (b"[1]", "the body must be a JSON object with the fields \\(order long, .*\\), it is an a"),
        (b'{"customer": "a", "amount": 1}', "the body has no 'order', which must be a long; it ha"),
        (b'{"order": "1", "customer": "a", "amount": 1}', "field 'order' is a long, the body has "),
        (b'{"order": 1, "customer": null, "amount": 1}', "field 'customer' is a string, the body "),
        (b'{"order": 1, "customer": "a", "amount": 1, "unit": null}', "field 'unit' is a string"),
        (
            b'{"order": 1, "customer": "a", "amount": -1}',
            "Order: ValueError: an amount is not negative$",
        ),
    ],
)
def test_what_a_dataclass_does_not_take_is_a_bad_body_in_one_line(body, reason):
    with pytest.raises(BadBodyError, match=f"^{reason}"):
        model_decoder(Order)(body)


def test_the_columns_of_a_pydantic_model_are_its_fields_and_what_no_column_holds_is_text():
    assert fields_of(Invoice) == (
        "`number` long, `customer` string, `amount` decimal(10,2), `note` string?, `at` timestamp, "
        "`address` struct<`street` string>?, `colour` string, `kind` string, "
        "`lines` array<struct<`street` string>>, `tags` array<string>"
    )


def test_a_pydantic_model_validates_the_body():
    body = (
        b'{"no": 7, "customer": "ann", "amount": "12.30", "at": "2024-01-01T12:00:00Z", '
        b'"address": {"street": "\xc3\xbc"}, "lines": [{"street": "b"}], "tags": ["x"]}'
    )
    values = model_decoder(Invoice)(body)
    assert values == [
        7, "ann", Decimal("12.30"), None, datetime(2024, 1, 1, 12, tzinfo=UTC),
        {"street": "ü"}, "red", "a", [{"street": "b"}], ["x"],
    ]  # fmt: skip
    assert Schema.parse(fields_of(Invoice)).batch([values]).num_rows == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"no": 1, "no": 2}', "the body is not JSON: the name 'no' stands twice"),
        (b"[1]", "Invoice: Input should be an object"),
        (b'{"customer": "a", "amount": 1}', "Invoice: field 'no': Field required$"),
        (
            b'{"no": 0, "customer": "unknown", "amount": 1}',
            r"Invoice: field 'no': Input should be greater than 0 \(and 1 more\)$",
        ),
        (
            b'{"no": 1, "customer": "unknown", "amount": 1}',
            "Invoice: field 'customer': Value error, there is no such customer$",
        ),
        (
            b'{"no": 1, "customer": "a", "amount": 1, "lines": [{"street": 3}]}',
            "Invoice: field 'lines\\[0\\].street': Input should be a valid string$",
        ),
    ],
)
def test_what_a_pydantic_model_does_not_take_is_a_bad_body_in_one_line(body, reason):
    with pytest.raises(BadBodyError, match=f"^{reason}"):
        model_decoder(Invoice)(body)


def test_a_validator_that_breaks_harms_its_message_alone():
    class Breaking(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def _break(cls, value: int) -> int:
            raise ZeroDivisionError

    with pytest.raises(BadBodyError, match=r"^Breaking: ZeroDivisionError"):
        model_decoder(Breaking)(b'{"n": 1}')


@dataclass
class Nested:
    order: Address


@dataclass
class Empty:
    pass


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            Nested,
            "field 'order' of Nested has the type .*Address.*: use str, .*, or a pydantic model",
        ),
        (Empty, "the model Empty has no fields"),
        (int, "a model is a dataclass or a pydantic model, not <class 'int'>"),
        (Order(1, "a", Decimal(1), None), "a model is a dataclass or a pydantic model, not Order"),
    ],
)
def test_what_is_no_model_is_refused_where_it_is_written(model: Any, said: str):
    with pytest.raises(SchemaError, match=said):
        fields_of(model)


class Basket(pydantic.BaseModel):
    lines: list[Line]


class Line(pydantic.BaseModel):
    sku: str


def test_a_class_that_is_defined_after_the_model_that_names_it_is_a_struct():
    assert fields_of(Basket) == "`lines` array<struct<`sku` string>>"
    assert model_decoder(Basket)(b'{"lines": [{"sku": "tea"}]}') == [[{"sku": "tea"}]]


@dataclass
class TypesOnly:
    amount: Money  # type: ignore[name-defined]  # noqa: F821


class TypesOnlyToo(pydantic.BaseModel):
    amount: Money  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("model", [TypesOnly, TypesOnlyToo])
def test_an_annotation_that_names_nothing_is_refused_where_the_model_is_used(model: Any):
    name = model.__name__
    with pytest.raises(SchemaError, match=f"annotation of {name} names 'Money', which is not def"):
        fields_of(model)


def test_every_flat_type_has_a_column():
    @dataclass
    class Flat:
        s: str
        b: bytes
        t: bool
        i: int
        f: float
        d: Decimal
        day: date
        at: datetime
        small: Annotated[int, "tinyint"]
        maybe: list[float] | None

    Flat.__annotations__["maybe"] = list[float] | None
    assert fields_of(Flat) == (
        "`s` string, `b` binary, `t` boolean, `i` long, `f` double, `d` decimal(38,18), "
        "`day` date, `at` timestamp, `small` tinyint, `maybe` array<double>?"
    )
    body = (
        b'{"s": "a", "b": "AAE=", "t": true, "i": 1, "f": 1, "d": 1.5, "day": "2024-02-29", '
        b'"at": "2024-02-29T00:00:00", "small": 1, "maybe": [1]}'
    )
    assert Schema.parse(fields_of(Flat)).batch([model_decoder(Flat)(body)]).num_rows == 1
    with pytest.raises(BadBodyError, match="field 'small' is a tinyint, the body has the number 1"):
        model_decoder(Flat)(body.replace(b'"small": 1', b'"small": 1000'))

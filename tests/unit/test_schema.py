import datetime as dt
import decimal

import numpy as np
import pytest

from queues import Schema
from queues.errors import SchemaError


def test_the_columns_have_names_types_and_positions():
    schema = Schema.parse("word string, `n` LONG, price decimal(10,2), tags array<string>")
    assert schema.names == ("word", "n", "price", "tags")
    assert str(schema) == "word string, n long, price decimal(10,2), tags array<string>"
    assert schema.position("price") == 2


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("", "no fields"),
        ("word", "cannot read 'word'"),
        ("word strng", "unknown type 'strng'"),
        ("a long, a string", "twice"),
        ("__a long", "reserved"),
        ("d decimal(99,2)", "unknown type"),
    ],
)
def test_a_ddl_that_cannot_be_read_says_why(ddl, said):
    with pytest.raises(SchemaError, match=said):
        Schema.parse(ddl)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("string", "x"),
        ("string", "ö"),
        ("binary", b"\0"),
        ("boolean", True),
        ("byte", -128),
        ("long", 2**63 - 1),
        ("long", np.int64(7)),
        ("double", 1.5),
        ("double", 1),
        ("date", dt.date(2026, 1, 1)),
        ("timestamp", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("decimal(4,2)", decimal.Decimal("12.34")),
        ("array<long>", [1, 2]),
        ("long", None),
    ],
)
def test_a_value_of_the_type_fits(type_, value):
    schema = Schema.parse(f"a {type_}")
    schema.check([value])
    assert schema.batch([[value]]).num_rows == 1


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("string", 1),
        ("string", "\ud800"),
        ("byte", 128),
        ("long", 2**63),
        ("long", 1.5),
        ("long", 1.0),
        ("long", "1"),
        ("boolean", 1),
        ("double", "1"),
        ("array<long>", [1, "2"]),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_field_and_the_value(type_, value):
    schema = Schema.parse(f"a {type_}, b string")
    with pytest.raises(SchemaError, match="field 'a' is a"):
        schema.check([value, "x"])
    with pytest.raises(SchemaError, match="field 'a' is a"):
        schema.batch([[None, "x"], [value, "x"]])


def test_the_number_of_values_must_be_that_of_the_fields():
    schema = Schema.parse("a long, b long")
    with pytest.raises(SchemaError, match="got 1 values for the 2 fields"):
        schema.check([1])
    with pytest.raises(SchemaError, match="must be a list"):
        schema.check("ab")

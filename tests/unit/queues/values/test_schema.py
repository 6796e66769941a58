import datetime as dt
import decimal
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel import Schema
from tiercel.queues.errors import SchemaError


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
        ("m map<string,long>", "unknown type 'map<string,long>' .* map<string,string> or array"),
        ("m array<map<string,string>>", "unknown type 'array<map<string,string>>'"),
        ("d decimal(5,-99999999999999999999)", "unknown type"),
        (f"d decimal({'1' * 5000},2)", "unknown type"),
        (f"a {'array<' * 17}long{'>' * 17}", "at most 16 arrays in one another"),
        (f"a {'array<' * 10_000}long{'>' * 10_000}", "at most 16 arrays in one another"),
        (f"a string DEFAULT {'[' * 90_000}", "cannot read the default"),
        ("a long, " * 20_000, "has 160,000 characters; write at most 100,000"),
    ],
)
def test_a_ddl_that_cannot_be_read_says_why(ddl, said):
    with pytest.raises(SchemaError, match=said):
        Schema.parse(ddl)


@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    "a",
                    "`b c`",
                    "`",
                    " ",
                    ":",
                    ",",
                    "string",
                    "array<",
                    "map<string,",
                    "decimal(",
                    "9",
                ),
                *("-", ">", ")", "(", "?", " default ", "'", '"', "null", "[", "]", "é"),
            ]
        )
        | st.text(max_size=3)
    ).map("".join)
)
def test_any_text_is_a_schema_or_refused(ddl):
    with suppress(SchemaError):
        Schema.parse(str(Schema.parse(ddl)))


HARD = {
    "blanks before a letter": lambda size: "a string" + " " * size + "x!",
    "blanks before question marks": lambda size: "a " + " " * size + "?" * size,
    "colons": lambda size: "a " + ": " * size,
    "commas": lambda size: "a int," * size,
    "defaults": lambda size: "a " + "default " * size,
    "quotes": lambda size: "a string default '" + "''" * size,
    "arrays": lambda size: "a " + "array<" * size,
}


@pytest.mark.parametrize("kind", HARD)
def test_a_schema_takes_time_in_proportion_to_its_length(kind):
    def seconds(size):
        best = []
        for _ in range(3):
            began = time.process_time()
            with suppress(SchemaError):
                Schema.parse(HARD[kind](size))
            best.append(time.process_time() - began)
        return min(best)

    # With backtracking, eight times the length would take 64 times as long, or more.
    assert seconds(12_000) < 24 * max(seconds(1_500), 0.0005)


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
        ("float", 3.4e38),
        ("float", float("-inf")),
        ("float", np.float32(1.5)),
        ("date", dt.date(2026, 1, 1)),
        ("date", dt.date.max),
        ("timestamp", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("timestamp", dt.datetime.min.replace(tzinfo=dt.UTC)),
        ("timestamp", dt.datetime.max.replace(tzinfo=dt.UTC)),
        ("decimal(4,2)", decimal.Decimal("12.34")),
        ("array<long>", [1, 2]),
        ("map<string,string>", {"a": "ö", "none": None, "": ""}),
        ("MAP< STRING, string >", {}),
        ("map<string,string>", None),
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
        # Arrow would make it infinity.
        ("float", 1e39),
        ("array<float>", [1.0, -1e300]),
        ("array<long>", [1, "2"]),
        # Its characters, or its names, would be the items.
        ("array<string>", "ab"),
        ("array<string>", {"a": 1}),
        # A number has no unit: Arrow would take it for microseconds, or days.
        ("date", 20_000),
        ("timestamp", 1_795_768_380),
        ("timestamp_ntz", np.int64(1_795_768_380_297)),
        ("array<timestamp>", [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 5]),
        # Arrow would move it to UTC, and drop its zone.
        ("timestamp_ntz", dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))),
        ("array<timestamp_ntz>", [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
        # Python cannot read these values, and the receiver would lose their neighbours too.
        ("date", 2_932_897),
        ("date", 20_240_101),
        ("timestamp", 1_795_768_380_297_990_397),
        ("timestamp", dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))),
        ("timestamp", dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-2)))),
        ("timestamp_ntz", -(2**62)),
        ("array<timestamp>", [0, 2**62]),
        ("map<string,string>", {"a": 1}),
        ("map<string,string>", {1: "a"}),
        ("map<string,string>", {None: "a"}),
        ("map<string,string>", {"\ud800": "a"}),
        ("map<string,string>", [("a", "b")]),
        ("map<string,string>", "ab"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_field_and_the_value(type_, value):
    schema = Schema.parse(f"a {type_}, b string")
    with pytest.raises(SchemaError, match=r"field 'a(\[\d\])?' is a"):
        schema.check([value, "x"])
    with pytest.raises(SchemaError, match=r"field 'a(\[\d\])?' is a"):
        schema.batch([[None, "x"], [value, "x"]])


class Detached:
    """As an object of an ORM whose session is closed."""

    def __repr__(self) -> str:
        raise RuntimeError("not bound to a session")


class Exits:
    def __repr__(self) -> str:
        raise SystemExit(3)


class Zone(dt.tzinfo):
    """As a zone that is read from a database when it is needed."""

    def __init__(self, offset) -> None:
        self.offset = offset

    def utcoffset(self, _when):
        return self.offset()

    def dst(self, _when):
        return None


def raising(error):
    def offset():
        raise error

    return dt.datetime(2026, 1, 1, tzinfo=Zone(offset))


class Frame(Sequence):
    """As a frame of pandas, which has a length and is read by the names of its columns."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, name):
        raise KeyError(name)

    def __repr__(self) -> str:
        return "a frame"


@pytest.mark.parametrize(
    ("type_", "value", "said"),
    [
        ("long", Detached(), "a Detached that cannot be read: it raises a RuntimeError"),
        ("array<string>", Frame(), "the value is the Frame a frame"),
        ("timestamp", np.ma.masked, "the value is the MaskedConstant masked"),
        ("timestamp", raising(RuntimeError("no database")), "the value is the datetime "),
        ("timestamp", raising(SystemExit(3)), "the value is the datetime "),
        (
            "timestamp",
            dt.datetime(2026, 1, 1, tzinfo=Zone(lambda: "nonsense")),
            "the value is the datetime ",
        ),
        ("long", Exits(), "an Exits that cannot be read: it raises a SystemExit"),
        ("array<long>", [Exits()], ".* that cannot be read: it raises a SystemExit"),
    ],
)
def test_a_value_whose_own_code_raises_is_refused_as_any_misfit(type_, value, said):
    """The error of a pandas frame, a masked value or a lazy object is none of Arrow's."""
    schema = Schema.parse(f"it {type_}")
    for refused in (schema.check, lambda values: schema.batch([values])):
        with pytest.raises(SchemaError, match=f"field 'it' is an? {type_}, .*{said}"):
            refused([value])


def test_a_time_of_a_struct_outside_of_pythons_years_is_refused():
    schema = Schema.parse("a struct<times: array<timestamp>>")
    fits = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    beyond = dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-2)))
    with pytest.raises(SchemaError, match=r"'a.times\[1\]' is a timestamp"):
        schema.batch([[{"times": [fits, beyond]}]])


@pytest.mark.parametrize("zeros", [0, 1, 9, 10, 100, 400, 1_000, 100_000, 6_000_000])
@pytest.mark.parametrize("number", ["1", "-123.5", "9999999999999999999999999999.9", "0"])
def test_a_decimal_is_exact_however_many_zeros_it_has(number, zeros):
    schema = Schema.parse("d decimal(38,10), l array<decimal(38,10)>")
    value = decimal.Decimal(f"{number}{'' if '.' in number else '.'}{'0' * zeros}")
    schema.check([value, [None, value]])
    row = schema.batch([[value, [None, value]], [None, None]]).to_pylist()[0]
    assert row == {"d": decimal.Decimal(number), "l": [None, decimal.Decimal(number)]}


@pytest.mark.parametrize(
    "value",
    [
        *map(
            decimal.Decimal,
            [
                "1.234",
                "100",
                "-100",
                "NaN",
                "sNaN",
                "Infinity",
                "1e999999999",
                "1e-999999999",
                f"1.{'0' * 500}1",
            ],
        ),
        decimal.Decimal("9" * 1_000_000),
        10**1_000_000,
        100,
        1.5,
        "1.5",
        True,
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_decimal_that_would_be_rounded_or_is_too_large_is_refused(value):
    schema = Schema.parse("d decimal(4,2), l array<decimal(4,2)>")
    for row in ([value, None], [None, [value]]):
        with pytest.raises(SchemaError, match=r"field '[dl](\[0\])?' is a"):
            schema.check(row)
        with pytest.raises(SchemaError, match=r"field '[dl](\[0\])?' is a"):
            schema.batch([[None, None], row])


def test_integers_and_the_largest_numbers_fit_a_decimal():
    schema = Schema.parse("d decimal(4,2), e decimal(38,0)")
    row = schema.batch([[np.int64(-99), 10**38 - 1]]).to_pylist()[0]
    assert row == {"d": -99, "e": 10**38 - 1}
    assert schema.batch([[decimal.Decimal("9E+1"), decimal.Decimal("1E+37")]]).to_pylist()[0] == {
        "d": 90,
        "e": 10**37,
    }


def test_no_fraction_is_cut_off_in_an_array_either():
    schema = Schema.parse("a array<array<long>>")
    assert schema.batch([[[[1.0, None], None]]]).to_pylist() == [{"a": [[1, None], None]}]
    with pytest.raises(SchemaError, match=r"field 'a\[0\]\[0\]' is a long, .* 1.5"):
        schema.batch([[[[1.5]]]])


def test_the_number_of_values_must_be_that_of_the_fields():
    schema = Schema.parse("a long, b long")
    with pytest.raises(SchemaError, match="got 1 values for the 2 fields"):
        schema.check([1])
    with pytest.raises(SchemaError, match="must be a list"):
        schema.check("ab")


def test_what_bodies_may_leave_out_is_said_behind_the_type():
    schema = Schema.parse(
        "a string ?, b decimal(4, 2)? , c string default 'it''s, (so', "
        "d array<int> DEFAULT [1, 2], default long"
    )
    assert [field.type for field in schema.fields] == [
        "string",
        "decimal(4, 2)",
        "string",
        "array<int>",
        "long",
    ]
    assert [field.optional for field in schema.fields] == [True, True, False, False, False]
    assert [field.default for field in schema.fields] == ["", "", '"it\'s, (so"', "[1, 2]", ""]
    assert str(schema) == (
        'a string?, b decimal(4, 2)?, c string DEFAULT "it\'s, (so", d array<int> DEFAULT [1, 2], '
        "default long"
    )
    assert Schema.parse(str(schema)) == schema


def test_what_is_optional_in_bodies_makes_no_difference_to_tuples():
    row = [None, None]
    assert Schema.parse("a string?, b long DEFAULT 3").batch([row]).to_pylist() == [
        {"a": None, "b": None}
    ]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("a string DEFAULT kg", "cannot read the default 'kg' of field 'a'"),
        ("a string DEFAULT null", "cannot have the default null; write a question mark"),
        ("a strin?", "unknown type 'strin'"),
    ],
)
def test_a_default_that_cannot_be_read_says_how_to_write_it(ddl, said):
    with pytest.raises(SchemaError, match=said):
        Schema.parse(ddl)

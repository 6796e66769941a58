"""From bodies to values."""

import json
import math
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.values.formats import decoder_for, default_format
from tiercel.queues.values.schema import Schema

EVERYTHING = Schema.parse(
    "s string, b binary, t boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d "
    "double, day date, at timestamp, local timestamp_ntz, price decimal(10,2), words "
    "array<string>, grid array<array<int>>, texts map<string,string>"
)


def decode(ddl, body):
    return decoder_for(Schema.parse(ddl))(body if isinstance(body, bytes) else body.encode())


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("line string", "text"),
        ("raw binary", "bytes"),
        ("n long", "json"),
        ("a string, b string", "json"),
        ("w array<string>", "json"),
    ],
)
def test_the_format_follows_from_the_fields(ddl, expected):
    assert default_format(Schema.parse(ddl)) == expected


def test_text_is_the_body_as_it_is():
    assert decode("line string", "grüße\n\x00 ") == ["grüße\n\x00 "]
    assert decode("line string", b"") == [""]


def test_bytes_are_the_body_as_it_is():
    assert decode("raw binary", b"\xff\x00") == [b"\xff\x00"]


def test_text_that_is_not_utf8_names_the_byte():
    with pytest.raises(BadBodyError, match="byte 2 is 0xff"):
        decode("line string", b"ab\xff")


def test_json_members_go_to_the_columns_of_their_name():
    assert decode("word string, n long", '{"n": 3, "word": "a", "more": [1]}') == ["a", 3]


def test_what_is_optional_may_be_missing_or_null():
    assert decode("word string?, n long?", '{"n": null}') == [None, None]
    assert decode("word string?, n long?", '{"n": 1, "word": "a"}') == ["a", 1]


def test_what_is_missing_has_its_default():
    ddl = (
        "unit string DEFAULT 'kg', n long? DEFAULT 3, price decimal(4,2) default 1.50, "
        "w array<int> DEFAULT [1, 2]"
    )
    assert decode(ddl, "{}") == ["kg", 3, Decimal("1.50"), [1, 2]]
    assert decode(ddl, '{"unit": "g", "n": null}')[:2] == ["g", None]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{}", "^the body has no 'order', which must be a long; it has nothing$"),
        ('{"ordr": 1, "unit": "g"}', "^the body has no 'order', .*; it has ordr, unit$"),
        (json.dumps(dict.fromkeys("abcdefg", 1)), "; it has a, b, c, d, e, …$"),
        ('{"order": null}', "^field 'order' is a long, the body has null$"),
        ('{"order": 1, "unit": null}', "^field 'unit' is a string, the body has null$"),
        (json.dumps({"x" * 1000: 1}), f"; it has {'x' * 30}$"),
    ],
)
def test_what_is_required_and_missing_is_a_bad_body_and_says_what_is_there(body, reason):
    with pytest.raises(BadBodyError, match=reason):
        decode("order long, unit string DEFAULT 'kg'", body)


def test_a_default_that_is_no_value_of_its_field_is_refused_where_it_is_written():
    with pytest.raises(SchemaError, match="field 'n' is a long, its default is \"a\""):
        decoder_for(Schema.parse("n long DEFAULT 'a'"))


def test_every_type_arrives_as_arrow_wants_it():
    body = {
        "s": "ü", "b": "AAH/", "t": False, "i8": -128, "i16": 32767, "i32": -(2**31),
        "i64": 2**63 - 1, "f": 1, "d": 1.5,
        "day": "2024-02-29", "at": "2024-01-01T12:00:00+02:00",
        "local": "2024-01-01T12:00:00.000001", "price": "12.30",
        "words": ["a", None], "grid": [[1], [], None], "texts": {"ä": "b", "none": None},
    }  # fmt: skip
    values = decoder_for(EVERYTHING)(json.dumps(body).encode())
    assert values == [
        "ü", b"\x00\x01\xff", False, -128, 32767, -(2**31), 2**63 - 1, 1.0, 1.5, date(2024, 2, 29),
        datetime(2024, 1, 1, 10, tzinfo=UTC), datetime(2024, 1, 1, 12, 0, 0, 1),  # noqa: DTZ001 - timestamp_ntz has none
        Decimal("12.30"), ["a", None], [[1], [], None], {"ä": "b", "none": None},
    ]  # fmt: skip
    assert EVERYTHING.batch([values]).num_rows == 1


@pytest.mark.parametrize("text", ["12", "+12", "12.", "12.00", "1.2e1", "120E-1", "0012"])
def test_a_decimal_in_a_string_is_a_plain_number(text):
    assert decode("x decimal(4,2)", json.dumps({"x": text})) == [Decimal("12.00")]


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-29T10:00:00.123456Z", "2024-02-29 10:00:00.123456", "20240229T100000.123456Z",
        "2024-02-29T12:00:00.123456+02:00", "2024-02-29T10:00:00,123456+00",
        # The digits behind the microseconds are cut off, as the documentation says.
        "2024-02-29T10:00:00.123456789Z",
    ],
)  # fmt: skip
def test_a_timestamp_is_a_calendar_date_and_a_time(text):
    moment = datetime(2024, 2, 29, 10, 0, 0, 123456, tzinfo=UTC)
    assert decode("x timestamp", json.dumps({"x": text})) == [moment]


def test_a_timestamp_without_an_offset_is_utc():
    assert decode("at timestamp", '{"at": "2024-01-01"}') == [datetime(2024, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("ddl_type", "value"),
    [
        ("string", "1"), ("string", '["a"]'), ("string", '"\\ud800"'), ("binary", '"not base64!"'),
        ("binary", "1"),
        ("boolean", "1"), ("boolean", '"true"'), ("int", "true"), ("int", "1.0"), ("int", '"1"'),
        ("int", str(2**31)),
        ("tinyint", "128"), ("bigint", str(2**63)), ("double", "true"), ("double", '"1"'),
        ("double", "1e999"),
        ("double", "1" * 400),
        ("float", "1e39"), ("date", '"2024-02-30"'), ("date", "20240101"), ("timestamp", '"now"'),
        ("timestamp", "0"), ("date", '"2024-W01-1"'), ("date", '"20240101"'),
        ("date", '" 2024-01-01"'),
        ("timestamp", '"2024-W01-1"'), ("timestamp", '"2024-W01-1T10:00:00Z"'),
        ("timestamp", '"2024-01-01x10:00"'), ("timestamp_ntz", '"2024-W01-1T10:00"'),
        ("decimal(9,2)", '"1_000"'), ("decimal(9,2)", '" 1 "'), ("decimal(9,2)", '"1\\n"'),
        ("decimal(9,2)", '"\u0661\u0662"'), ("decimal(9,2)", '""'), ("decimal(9,2)", '"."'),
        ("timestamp", '"0001-01-01T00:00:00+23:00"'), ("timestamp_ntz", '"2024-01-01T00:00:00Z"'),
        ("decimal(4,2)", "123.4"),
        ("decimal(4,2)", "1.234"), ("decimal(4,2)", '"NaN"'), ("decimal(4,2)", '"1e999999999"'),
        ("decimal(4,2)", "true"),
        ("decimal(4,2)", '"x"'), ("array<int>", "1"), ("array<int>", '[1, "2"]'),
        ("array<int>", '{"0": 1}'), ("string", "{}"),
        ("map<string,string>", "[]"), ("map<string,string>", '{"a": 1}'),
        ("map<string,string>", '{"a": "\\ud800"}'), ("map<string,string>", '{"\\ud800": null}'),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_a_bad_body_that_names_the_field(ddl_type, value):
    with pytest.raises(BadBodyError, match=r"field 'x(\[1\])?' is a"):
        decode(f"x {ddl_type}, y string", f'{{"x": {value}}}')


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"[1]", "must be a JSON object"),
        (b"3", "must be a JSON object"),
        (b"null", "must be a JSON object"), (b"\xff{}", "not JSON in UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"n": NaN}', "NaN is not JSON"),
        (b'{"m": [Infinity]}', "Infinity is not JSON"), (b'{"n": 1, "n": 2}', "'n' stands twice"),
        (b'{"m": {"a": 1, "a": 1}}', "'a' stands twice"), (b"[" * 200_000, "nested too deeply"),
        (b'{"m":' * 200_000, "nested too deeply"), (b'{"n": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b'{"n": 1} x', "not JSON"),
        ("{}".encode("utf-16"), "not JSON"), (b'{"n":\x00 1}', "not JSON"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_object_says_why(body, says):
    with pytest.raises(BadBodyError, match=says) as caught:
        decode("n long, m string", body)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zeros", [0, 10, 100, 400, 1_000, 100_000, 6_000_000])
@pytest.mark.parametrize("number", ["1", "123.5", "9999999999999999999999999999.9"])
@pytest.mark.parametrize("quote", ['"', ""])
def test_a_decimal_with_zeros_is_exact_or_refused(number, zeros, quote):
    schema = Schema.parse("p decimal(38,10)")
    body = f'{{"p": {quote}{number}{"" if "." in number else "."}{"0" * max(zeros, 1)}{quote}}}'
    try:
        values = decoder_for(schema)(body.encode())
    except BadBodyError as error:
        assert zeros > 400 or not quote
        assert str(error).startswith("field 'p' is a decimal(38,10), the body has")  # noqa: PT017
    else:
        assert schema.batch([values]).to_pylist() == [{"p": Decimal(number)}]


def test_a_decimal_may_have_zeros_behind_its_scale():
    assert decode("p decimal(4,2)", '{"p": "1.5000"}') == [Decimal("1.5")]
    assert decode("p decimal(4,2)", '{"p": 0e99}') == [Decimal(0)]
    assert decode("p decimal(4,2)", '{"p": 10}') == [Decimal(10)]


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("a string, b string", "text"),
        ("n long", "text"),
        ("s string", "bytes"),
        ("s string", "xml"),
    ],
)
def test_a_format_that_does_not_suit_the_fields_is_refused_at_once(ddl, expected):
    with pytest.raises(SchemaError):
        decoder_for(Schema.parse(ddl), expected)


flat_values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.decimals().map(str)
    | st.datetimes().map(str)
)
json_values = (
    flat_values
    | st.lists(flat_values | st.lists(flat_values, max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=5), flat_values, max_size=3)
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(EVERYTHING.names), json_values, max_size=5))
def test_whatever_an_object_holds_it_is_a_bad_body_or_fits_arrow(body):
    try:
        values = decoder_for(EVERYTHING)(json.dumps(body).encode("utf-8", "surrogatepass"))
    except BadBodyError:
        return
    assert EVERYTHING.batch([values]).num_rows == 1


@given(st.binary())
def test_whatever_bytes_come_nothing_else_is_raised(body):
    for decoder in (
        decoder_for(EVERYTHING),
        decoder_for(Schema.parse("s string")),
        decoder_for(Schema.parse("b binary")),
    ):
        with suppress(BadBodyError):
            decoder(body)


def test_a_decimal_is_the_number_that_is_written_and_not_the_nearest_float():
    assert decode("p decimal(20,2)", '{"p": 90071992547409.93}') == [Decimal("90071992547409.93")]
    assert decode("p decimal(20,2), d double", '{"p": 1, "d": 90071992547409.934567}') == [
        Decimal(1),
        90071992547409.934567,
    ]
    assert decode("p array<decimal(38,18)>", '{"p": [0.123456789012345678]}') == [
        [Decimal("0.123456789012345678")]
    ]
    with pytest.raises(BadBodyError, match="field 'p' is a decimal"):
        decode("p decimal(20,2)", '{"p": 1e-400}')


@given(st.integers(-(10**12), 10**12), st.integers(-12, 12), st.booleans())
def test_decimals_that_are_accepted_fit_exactly(digits, exponent, quoted):
    schema = Schema.parse("p decimal(10,3)")
    number = Decimal(digits).scaleb(exponent)
    written = json.dumps(str(number)) if quoted else str(number)
    try:
        values = decoder_for(schema)(f'{{"p": {written}}}'.encode())
    except BadBodyError:
        assert abs(number) >= 10**7 or number != number.quantize(Decimal("0.001"))
        return
    assert schema.batch([values]).column(0)[0].as_py() == number


@given(st.floats(width=32, allow_nan=False))
def test_floats_of_32_bits_stay_finite(number):
    schema = Schema.parse("f float")
    if math.isinf(number):
        return
    stored = (
        schema.batch([decoder_for(schema)(json.dumps({"f": number}).encode())]).column(0)[0].as_py()
    )
    assert stored == number

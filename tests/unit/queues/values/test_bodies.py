"""From values to bodies and back by ``formats``: one topology reads another's bodies."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercel.queues.values.formats import decoder_for, json_body, plain_body
from tiercel.queues.values.python_values import python_values
from tiercel.queues.values.schema import Schema

EVERYTHING = Schema.parse(
    "s string?, b binary?, t boolean?, i8 tinyint?, i64 bigint?, f float?, d double?, day date?, "
    "at timestamp?, local timestamp_ntz?, price decimal(38,10)?, words array<string>?, blobs "
    "array<array<binary>>?, texts map<string,string>?"
)
TEXT = st.text(st.characters(codec="utf-8"))
MOMENTS = st.datetimes()
VALUES = st.tuples(
    *(
        st.none() | values
        for values in (
            TEXT,
            st.binary(),
            st.booleans(),
            st.integers(-(1 << 7), (1 << 7) - 1),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.floats(allow_nan=False, allow_infinity=False, width=32),
            st.floats(allow_nan=False, allow_infinity=False),
            st.dates(),
            MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
            MOMENTS,
            st.decimals(-(10**28) + 1, 10**28 - 1, places=10),
            st.lists(st.none() | TEXT),
            st.lists(st.lists(st.binary())),
            st.dictionaries(TEXT, st.none() | TEXT),
        )
    )
)


@given(VALUES)
@settings(deadline=None)
def test_what_is_written_is_read_back_as_it_was(values):
    # As Arrow passes them to a bolt.
    batch = EVERYTHING.batch([list(values)])
    received = [python_values(column)[0] for column in batch.columns]
    body = json_body(zip(EVERYTHING.names, received, strict=True))
    assert decoder_for(EVERYTHING)(body) == received


def test_json_is_utf8_and_as_short_as_it_can_be():
    assert (
        json_body([("word", "grüße"), ("n", 1), ("none", None)])
        == '{"word":"grüße","n":1,"none":null}'.encode()
    )
    assert json_body([]) == b"{}"


def test_types_that_json_lacks_are_written_as_formats_reads_them():
    body = json_body(
        [
            ("raw", b"\xff\x00"),
            ("price", Decimal("1.50")),
            ("day", date(2024, 2, 29)),
            ("at", datetime(2024, 2, 29, 12, 30, 0, 5, UTC)),
            ("nested", [[b"a"]]),
        ]
    )
    assert json.loads(body) == {
        "raw": "/wA=",
        "price": "1.50",
        "day": "2024-02-29",
        "at": "2024-02-29T12:30:00.000005+00:00",
        "nested": [["YQ=="]],
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan]])
def test_numbers_that_json_lacks_are_refused_by_the_name_of_their_field(value):
    with pytest.raises(ValueError, match="field 'd' has NaN or infinity, which JSON lacks: emit"):
        json_body([("a", 1.5), ("d", value), ("z", "b")])


def test_a_value_that_no_column_holds_is_named():
    with pytest.raises(TypeError, match="the complex 1j cannot be written as JSON"):
        json_body([("c", 1j)])


def test_a_plain_body_is_text_in_utf8_or_bytes_as_they_are():
    assert plain_body("grüße") == "grüße".encode()
    assert plain_body(b"\xff\x00") == b"\xff\x00"
    assert plain_body("") == b""


@pytest.mark.parametrize("value", [7, None, ["a"], 1.5])
def test_anything_else_is_no_plain_body(value):
    with pytest.raises(TypeError, match=f"not the {type(value).__name__}"):
        plain_body(value)

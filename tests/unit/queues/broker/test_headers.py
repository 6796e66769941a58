"""Header tables with any content can be read."""

import struct
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import data

from tests.support.raw import ODD, array, entry, nested, table, text, timestamp
from tiercel.queues.broker.frames import DEEPEST, Headers
from tiercel.queues.retry import delivered_before

COUNT = entry(b"x-delivery-count", b"l" + struct.pack(">q", 7))
SEVEN = {"x-delivery-count": 7}


def test_values_come_as_pika_reads_them():
    values = {
        "text": "ü",
        "bytes": b"\xff",
        "yes": True,
        "long": 2**40,
        "void": None,
        "price": Decimal("1.50"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "table": {"a": [1, {"b": "c"}]},
    }
    assert dict(Headers.of(values)) == values


def test_a_fraction_stays_one_which_pika_cuts_off():
    assert Headers(ODD["fractions"]) == {"d": 1.5, "f": 2.5}


def test_a_timestamp_that_python_does_not_have_is_its_number():
    assert Headers(ODD["timestamp in milliseconds"]) == {"at": 1_795_000_000_000}
    assert Headers(ODD["timestamp of 64 bits"]) == {"at": 2**64 - 1}


def test_a_name_that_is_not_utf8_is_text_all_the_same():
    assert Headers(ODD["name not UTF-8"]) == {r"\xff\xfe": True, "plain": None}


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 600, 26_000])
def test_what_is_nested_deeper_than_the_limit_is_measured(depth):
    value = Headers(entry(b"deep", nested(depth)))["deep"]
    for _ in range(min(depth, DEEPEST) - 1):
        (value,) = value
    assert value == (
        []
        if depth <= DEEPEST
        else [f"({5 * (depth - DEEPEST) - 5} bytes nested more than {DEEPEST} deep)"]
    )


@pytest.mark.parametrize("odd", ODD)
def test_the_count_of_deliveries_is_found_beside_whatever_else_there_is(odd):
    if odd != "counts of a liar":
        assert delivered_before(Headers(COUNT + ODD[odd]), redelivered=True, counts=True) == 7
    if not Headers(ODD[odd]).unreadable and odd != "counts of a liar":
        assert delivered_before(Headers(ODD[odd] + COUNT), redelivered=True, counts=True) == 7


@pytest.mark.parametrize("odd", ODD)
def test_a_copy_has_the_same_bytes(odd):
    headers = Headers(entry(b"ours", b"V") + ODD[odd])
    if not headers.unreadable:
        assert headers.without({"ours"}.__contains__).wire == ODD[odd]


@pytest.mark.parametrize(
    ("wire", "why", "left"),
    [
        (ODD["type unknown"], "byte 2 is of the unknown type 0x5a", {}),
        (COUNT + ODD["type unknown"] + COUNT, "unknown type", SEVEN),
        (ODD["cut off"], "byte 2 is cut off", {}),
        (b"\x05a", "byte 6 is cut off", {}),
        (entry(b"n", b"l\x00"), "cut off", {}),
        (
            entry(b"a", array(b"Z")),
            "",
            {"a": "(unreadable: the value at byte 7 is of the unknown type 0x5a)"},
        ),
        (
            entry(b"a", table(b"\xff")) + COUNT,
            "",
            {"a": "(unreadable: the value at byte 263 is cut off)", "x-delivery-count": 7},
        ),
    ],
)
def test_what_has_no_end_is_left_out_with_the_reason(wire, why, left):
    headers = Headers(wire)
    assert headers == left
    assert why in headers.unreadable
    assert bool(headers.unreadable) == bool(why)
    assert Headers(headers.without(lambda _name: False).wire) == left


def test_of_a_name_that_stands_twice_the_first_counts_as_for_rabbitmq():
    assert Headers(ODD["a name twice"]) == {"n": None}
    assert Headers(COUNT + entry(b"x-delivery-count", b"V")) == SEVEN


def test_entries_are_added_in_place_of_those_of_their_names():
    headers = Headers(entry(b"a", text(b"1")) + COUNT).plus({"a": "ü", "b": "2"})
    assert headers == {"x-delivery-count": 7, "a": "ü", "b": "2"}
    assert headers.wire.count(b"\x01a") == 1


def test_what_pika_cannot_write_becomes_text():
    deep = []
    for _ in range(5_000):
        deep = [deep]
    headers = Headers.of({"f": 1.5, "deep": deep, b"\xff": {1: 2}, "n" * 300: None})
    assert headers["f"] == "1.5"
    assert headers["deep"] == "(list)"
    assert len(headers) == 4
    assert not headers.unreadable


def test_a_full_frame_of_tiny_headers_is_read_in_a_moment():
    for wire in (
        ODD["many names"],
        entry(b"a", array(*[b"V"] * 120_000)),
        entry(b"a", nested(26_000)),
    ):
        begun = time.process_time()
        assert len(repr(dict(Headers(wire)))) > 100
        assert time.process_time() - begun < 2


@given(st.binary(max_size=200))
def test_no_bytes_whatever_raise(wire):
    headers = Headers(wire)
    assert repr(headers)
    copy = headers.without(lambda _name: False)
    assert repr(copy) == repr(Headers(copy.wire))
    assert not copy.unreadable


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.text(max_size=20)
            | st.binary(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
        ),
    )
)
def test_what_pika_writes_and_reads_is_read_alike(values):
    pieces = []
    data.encode_table(pieces, values)
    wire = b"".join(pieces)
    assert dict(Headers(wire[4:])) == data.decode_table(wire, 0)[0]


def test_a_timestamp_in_an_ordinary_second_is_a_moment():
    assert Headers(entry(b"at", timestamp(0))) == {"at": datetime(1970, 1, 1, tzinfo=UTC)}

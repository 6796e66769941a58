"""Properties are checked before they are sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.broker.frames import read_properties
from tiercel.queues.errors import BadPropertyError
from tiercel.queues.message.properties import (
    BROKER_HEADERS,
    DEATH_HEADERS,
    EXCHANGE_HEADER,
    ROUTING_KEY_HEADER,
    SENDER_HEADER,
    SINCE_HEADER,
    header_texts,
)
from tiercel.queues.message.writing import TEXTS, WRITTEN, write_headers, write_properties
from tiercel.queues.retry import FAILURES_HEADER


def written(**values):
    """Return the properties as a consumer reads them."""
    return read_properties(b"".join(write_properties(values).encode()))


def test_what_is_written_is_read():
    values = {name: f"the {name}" for name in TEXTS}
    found = written(**values, priority=9, timestamp=5, headers={"a": "b"})
    assert {name: getattr(found, name) for name in TEXTS} == values
    assert (found.priority, found.timestamp, dict(found.headers)) == (9, 5, {"a": "b"})


def test_a_message_is_persistent_unless_it_is_said_otherwise():
    assert write_properties({}).delivery_mode == 2
    assert write_properties({}, persistent=False).delivery_mode == 1


def test_none_stands_for_none():
    assert written(**dict.fromkeys(WRITTEN)).headers is None
    assert written(message_id=None).message_id is None


def test_headers_of_any_type_arrive_as_they_were():
    headers = {
        "text": "grüße",
        "none": None,
        "yes": True,
        "small": -5,
        "large": 1 << 40,
        "point": 1.5,
        "money": Decimal("12.50"),
        "raw": b"\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "list": [1, "two", [None]],
        "table": {"a": {"b": 2.5}},
        "CC": ["one", "two"],
    }
    assert dict(written(headers=headers).headers) == headers


# Hypothesis also draws constants from the code: names of tiercel's headers are among the texts.
NAMES = st.text(min_size=1, max_size=60).filter(
    lambda name: name not in BROKER_HEADERS and not name.startswith(DEATH_HEADERS)
)
LEFT_OUT = {EXCHANGE_HEADER, ROUTING_KEY_HEADER, FAILURES_HEADER, SENDER_HEADER, SINCE_HEADER}


@given(st.dictionaries(NAMES, st.text() | st.none(), max_size=8))
def test_texts_come_back_through_a_column(headers):
    assert header_texts(write_headers(headers)) == {
        name: text for name, text in headers.items() if name not in LEFT_OUT
    }


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [(timedelta(seconds=1.5), "1500"), (60_000, "60000"), ("60000", "60000"), (0, "0")],
)
def test_an_expiration_is_in_milliseconds(given, milliseconds):
    assert written(expiration=given).expiration == milliseconds


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - that is the point
        datetime(2026, 1, 2, 4, 4, 5, tzinfo=timezone(timedelta(hours=1))),
        1_767_323_045,
    ],
)
def test_a_timestamp_is_in_seconds(moment):
    assert written(timestamp=moment).timestamp == 1_767_323_045


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"message_id": "m" * 256}, "message_id has 256 bytes, and a message has room for 255"),
        ({"message_id": "ü" * 128}, "message_id has 256 bytes"),
        ({"message_id": "m" * 1_000_000}, "message_id has 1,000,000 bytes"),
        ({"type": 5}, "type is a text, not the int 5"),
        ({"type": "\ud800"}, "type is no text in UTF-8"),
        ({"priority": 256}, "priority is a number from 0 to 255, not the int 256"),
        ({"priority": "high"}, "priority is a number"),
        ({"priority": True}, "priority is a number"),
        ({"expiration": "soon"}, "expiration is a time .* not the str 'soon'"),
        ({"expiration": -1}, "expiration is a time of 0 to"),
        ({"expiration": timedelta(days=60)}, "expiration is a time of 0 to"),
        ({"expiration": 1.5}, "expiration is a time"),
        ({"timestamp": "now"}, "timestamp is a moment since 1970, not the str 'now'"),
        ({"timestamp": datetime(1960, 1, 1, tzinfo=UTC)}, "timestamp is a moment since 1970"),
        ({"headers": "a=b"}, "headers is a mapping of names to values, not the str 'a=b'"),
        ({"headers": {"a": object}}, "header 'a' cannot be the type .*: headers hold no type"),
        ({"headers": {"a": {"b": [{1}]}}}, "header 'a' cannot be .*: headers hold no set"),
        ({"headers": {"a": 1 << 70}}, "header 'a' cannot be the int .*: it does not fit"),
        ({"headers": {"a": 10**5000}}, "header 'a' cannot be the int that cannot be shown"),
        ({"headers": {"a": Decimal("1e40")}}, "header 'a' cannot be the Decimal"),
        ({"headers": {"a": Decimal("nan")}}, "header 'a' cannot be the Decimal"),
        (
            {"headers": {"a": float("nan")}},
            "header 'a' cannot be the float nan: RabbitMQ takes only",
        ),
        (
            {"headers": {"a": [{"b": float("-inf")}]}},
            "header 'a' cannot be .*: RabbitMQ takes only",
        ),
        ({"headers": {"a": "\ud800"}}, "header 'a' cannot be the str .*: it does not fit"),
        ({"headers": {"": "a"}}, "header '' cannot be .*: a name has 1 to 255 bytes"),
        ({"headers": {"n" * 256: "a"}}, "a name has 1 to 255 bytes"),
        ({"headers": {5: "a"}}, "header 5 cannot be .*: a name has"),
        ({"headers": {"a": "x" * 130_000}}, "the headers have 130,007 bytes, and a message has"),
        ({"headers": {"CC": "queue"}}, "the header 'CC' is a list of routing keys"),
        ({"colour": "red"}, "a message has no property 'colour' to write; there are message_id,"),
        ({"delivery_count": 5}, "no property 'delivery_count' to write"),
    ],
)
def test_what_cannot_be_written_is_one_clear_line(values, line):
    with pytest.raises(BadPropertyError, match=line) as caught:
        write_properties(values)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_headers_nested_too_deep_are_refused():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(BadPropertyError, match="header 'a' cannot be"):
        write_properties({"headers": {"a": nested}})

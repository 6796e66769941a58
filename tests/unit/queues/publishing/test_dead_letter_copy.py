"""Content of a copy in the dead-letter queue."""

import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pika import BasicProperties

from tests.support.raw import ODD, properties
from tiercel.queues.broker.frames import read_properties
from tiercel.queues.message.properties import EXCHANGE_HEADER, published_headers
from tiercel.queues.publishing.copies import Death, dead_letter_properties, size_of

REASON = "x-tiercel-reason"
DIED = datetime(2026, 11, 23, 2, 5, 6, 789_999, tzinfo=UTC)
OURS = {"x-tiercel-died": "2026-11-23T02:05:06.789+00:00"}


def dead(properties, queue, reason, *published):
    """Return the properties of the copy of a message that died at this time."""
    return dead_letter_properties(
        properties, Death(queue=queue, reason=reason, at=DIED), *published
    )


def test_it_is_persistent_and_says_why_when_and_where_from():
    copy = dead(BasicProperties(), "orders", "no good")
    assert copy.delivery_mode == 2
    since = copy.headers["x-tiercel-since"]
    assert abs(int(since) - time.time()) < 60
    assert copy.headers == {
        REASON: "no good",
        "x-tiercel-queue": "orders",
        "x-tiercel-since": since,
        **OURS,
    }


def test_of_a_letter_that_dies_again_the_first_death_is_kept():
    again = BasicProperties(headers={"x-tiercel-since": "1700000000"})
    assert dead(again, "q", "r").headers["x-tiercel-since"] == "1700000000"


def test_it_keeps_what_the_sender_said():
    original = BasicProperties(
        content_type="a/b", message_id="7", headers={"trace": "t"}, correlation_id="c", priority=3
    )
    copy = dead(original, "q", "r")
    assert (copy.content_type, copy.message_id, copy.correlation_id, copy.priority) == (
        "a/b",
        "7",
        "c",
        3,
    )
    assert copy.headers["trace"] == "t"


def test_it_does_not_expire_go_elsewhere_or_claim_another_user():
    original = BasicProperties(
        expiration="1", user_id="somebody", headers={"CC": ["elsewhere"], "x-delivery-count": 9}
    )
    copy = dead(original, "q", "r")
    assert copy.expiration is None
    assert copy.user_id is None
    assert set(copy.headers) == {REASON, "x-tiercel-queue", "x-tiercel-since", *OURS}


def test_the_user_that_was_checked_travels_in_a_header_of_our_own_user_s_copy():
    original = BasicProperties(user_id="ann", headers={"x-tiercel-user": "forged"})
    copy = dead(original, "q", "r", {}, "tiercel")
    assert (copy.user_id, copy.headers["x-tiercel-user"]) == ("tiercel", "ann")
    again = dead(copy, "q", "r", {}, "tiercel")
    assert (again.user_id, again.headers["x-tiercel-user"]) == ("tiercel", "ann")


def test_a_message_without_a_checked_user_gets_none_by_its_copy():
    forged = BasicProperties(headers={"x-tiercel-user": "forged"})
    copy = dead(forged, "q", "r", {}, "tiercel")
    assert copy.user_id is None
    assert "x-tiercel-user" not in copy.headers


@pytest.mark.parametrize("odd", ODD)
def test_whatever_headers_the_sender_wrote_travel_byte_for_byte_or_are_said_to_be_missing(odd):
    original = read_properties(properties(ODD[odd]))
    copy = dead(original, "q", "r")
    assert copy.headers["x-tiercel-queue"] == "q"
    assert copy.headers[REASON].startswith("r")
    assert size_of(copy) <= 131_072
    if "left out" not in copy.headers[REASON] and "liar" not in odd:
        assert copy.headers.wire.startswith(ODD[odd])
    else:
        assert odd in (
            "type unknown",
            "cut off",
            "as large as a frame",
            "counts of a liar",
            "deaths of a liar",
        )


def test_headers_too_large_for_a_frame_beside_the_reason_are_left_out_and_it_says_so():
    original = read_properties(properties(ODD["as large as a frame"]))
    copy = dead(original, "q", "r")
    assert (
        copy.headers[REASON] == "r; 1 headers of 131,027 bytes left out: too large with the reason"
    )
    assert copy.headers["x-tiercel-queue"] == "q"


def test_headers_that_pika_made_travel_too():
    headers = {
        "f": 1.5,
        "d": Decimal("1.5"),
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "n": None,
        "b": b"x",
    }
    copy = dead(BasicProperties(headers=headers), "q", "r")
    assert {**copy.headers, "x-tiercel-since": ""} == headers | {
        "f": "1.5",
        REASON: "r",
        "x-tiercel-queue": "q",
        "x-tiercel-since": "",
        **OURS,
    }
    assert copy.encode()


def test_a_long_or_strange_reason_still_fits_a_header():
    copy = dead(BasicProperties(), "q", "ü\ud800" * 100_000)
    assert len(copy.headers[REASON].encode()) <= 2000
    assert copy.encode()


def test_it_says_where_the_message_was_published_before():
    published = published_headers("events", "order.new")
    copy = dead(BasicProperties(headers={"a": "b"}), "q", "r", published)
    assert copy.headers == {
        "a": "b",
        "x-tiercel-exchange": "events",
        "x-tiercel-routing-key": "order.new",
        REASON: "r",
        "x-tiercel-queue": "q",
        "x-tiercel-since": copy.headers["x-tiercel-since"],
        **OURS,
    }
    # The message died again after it was put back: the time of its first death counts.
    again = dead(copy, "q", "again", published_headers("", "q"))
    assert again.headers == {**copy.headers, REASON: "again"}
    large = read_properties(properties(ODD["as large as a frame"]))
    assert dead(large, "q", "r", published).headers[EXCHANGE_HEADER] == "events"

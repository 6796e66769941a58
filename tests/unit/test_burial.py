"""What a copy in the dead-letter queue carries."""

from datetime import UTC, datetime
from decimal import Decimal

from pika import BasicProperties

from queues.burial import dead_letter_properties

REASON = "x-tiercel-reason"


def test_it_is_persistent_and_says_why_and_where_from():
    copy = dead_letter_properties(BasicProperties(), "orders", "no good")
    assert copy.delivery_mode == 2
    assert copy.headers == {REASON: "no good", "x-tiercel-queue": "orders"}


def test_it_keeps_what_the_sender_said():
    original = BasicProperties(content_type="a/b", message_id="7", headers={"trace": "t"}, correlation_id="c", priority=3)
    copy = dead_letter_properties(original, "q", "r")
    assert (copy.content_type, copy.message_id, copy.correlation_id, copy.priority) == ("a/b", "7", "c", 3)
    assert copy.headers["trace"] == "t"


def test_it_does_not_expire_go_elsewhere_or_claim_another_user():
    original = BasicProperties(expiration="1", user_id="somebody", headers={"CC": ["elsewhere"], "x-delivery-count": 9})
    copy = dead_letter_properties(original, "q", "r")
    assert copy.expiration is None
    assert copy.user_id is None
    assert set(copy.headers) == {REASON, "x-tiercel-queue"}


def test_header_values_that_cannot_be_written_become_text():
    headers = {
        "f": 1.5,
        "deep": [{"f": 2.5}],
        "d": Decimal("1.5"),
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "n": None,
        "b": b"x",
    }
    copy = dead_letter_properties(BasicProperties(headers=headers), "q", "r")
    assert copy.headers["f"] == "1.5"
    assert copy.headers["deep"] == [{"f": "2.5"}]
    assert copy.encode()


def test_a_long_or_strange_reason_still_fits_a_header():
    copy = dead_letter_properties(BasicProperties(), "q", "ü\ud800" * 100_000)
    assert len(copy.headers[REASON].encode()) <= 2000
    assert copy.encode()

"""Content of a copy in a delay queue."""

import time

from pika import BasicProperties

from tests.support.raw import ODD, properties
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.frames import read_properties
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.message.properties import header_texts, published_headers, published_with
from tiercel.queues.publishing.copies import DelayWriter, delay_properties
from tiercel.queues.retry import failed_before


def told(copy: BasicProperties) -> dict[str, object]:
    """Return the headers of the copy, without the time of the first delay."""
    headers = dict(copy.headers)
    assert 0 <= time.time() - int(headers.pop("x-tiercel-since")) < 60
    return headers


def test_since_when_it_may_have_had_effects_is_said_by_the_first_delay():
    first = delay_properties(BasicProperties(headers={"x-tiercel-since": "1700000000"}), 1)
    assert delay_properties(first, 2).headers["x-tiercel-since"] == "1700000000"


def test_it_is_what_the_sender_said_and_how_often_it_failed():
    original = BasicProperties(
        content_type="a/b", message_id="7", headers={"trace": "t"}, correlation_id="c", priority=3
    )
    copy = delay_properties(original, 4)
    assert (copy.content_type, copy.message_id, copy.correlation_id, copy.priority) == (
        "a/b",
        "7",
        "c",
        3,
    )
    assert copy.delivery_mode == 2
    assert told(copy) == {"trace": "t", "x-tiercel-failures": 4}
    assert failed_before(copy.headers) == 4


def test_a_second_delay_counts_on_and_does_not_add_a_header():
    first = delay_properties(BasicProperties(), 1)
    second = delay_properties(first, 2)
    assert told(second) == {"x-tiercel-failures": 2}


def test_it_tells_where_it_was_published_also_after_a_second_delay():
    first = delay_properties(BasicProperties(), 1, published_headers("shop", "order.new"))
    second = delay_properties(first, 2, published_headers("", "orders"))
    assert published_with(second.headers) == ("shop", "order.new")


def test_nothing_of_the_delay_is_among_the_headers_of_the_message():
    copy = delay_properties(BasicProperties(headers={"kept": 1}), 1, published_headers("shop", "k"))
    copy.headers = copy.headers.plus(
        {"x-death": [{"queue": "orders.delay.100"}], "x-first-death-reason": "expired"}
    )
    assert header_texts(copy.headers) == {"kept": "1"}
    assert header_texts({"x-death": []}) == {"x-death": "[]"}, "of another's making"


def test_what_would_make_the_broker_drop_it_or_send_it_elsewhere_is_left_out():
    died = {"queue": "orders", "reason": "delivery_limit", "count": 1}
    original = BasicProperties(
        expiration="1",
        headers={"x-death": [died], "CC": ["elsewhere"], "x-delivery-count": 9, "kept": 1},
    )
    copy = delay_properties(original, 0)
    assert copy.expiration is None, "it would come back before its time"
    assert told(copy) == {"kept": 1, "x-tiercel-failures": 0}


def test_a_count_that_a_sender_made_up_is_never_negative():
    assert failed_before({"x-tiercel-failures": -9}) == 0
    assert failed_before({"x-tiercel-failures": "many"}) == 0
    assert failed_before(None) == 0


def test_headers_that_leave_no_room_are_refused_and_the_message_stays_where_it_is():
    full = read_properties(properties(ODD["as large as a frame"]))
    told = []
    writer = DelayWriter(Address.parse("amqp://guest@localhost"), "q")
    writer.copy(Delivery(1, 1, b"body", 0, full), 5.0, 1, told.append)
    assert "no room" in str(told[0])

"""A message is identified by its id, a header or its body, with any content."""

from __future__ import annotations

import time
from decimal import Decimal
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties

from tests.support.raw import ODD, properties
from tiercel import QueueSpout
from tiercel.queues.broker.frames import read_properties
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.message.identity import Identity, as_identity, identity_reader


def arrived(body=b"body", **said) -> Delivery:
    return Delivery(1, 1, body, 0, BasicProperties(**said))


def test_the_id_is_the_publisher_s_and_the_content_the_body_s():
    read = identity_reader("message_id")
    first = read(arrived(b"a", message_id="m-1"))
    assert first.id == b"m-1"
    assert first.content == int.from_bytes(blake2b(b"a", digest_size=16).digest())
    # An older version remembered messages by these 32 bits.
    assert first.short == int.from_bytes(blake2b(b"a", digest_size=4).digest())
    assert read(arrived(b"a", message_id="m-1")) == first
    assert read(arrived(b"b", message_id="m-1")).content != first.content
    assert read(arrived(b"a", message_id="m-2")).id != first.id


@pytest.mark.parametrize("missing", [None, "", b""])
def test_what_has_no_id_has_no_identity(missing):
    assert identity_reader("message_id")(arrived(message_id=missing)) is None


@pytest.mark.parametrize("headers", [None, {}, {"other": "x"}, {"id": None}, {"id": ""}])
def test_what_lacks_the_header_has_no_identity(headers):
    assert identity_reader("header:id")(arrived(headers=headers)) is None


@pytest.mark.parametrize(
    ("value", "known_by"),
    [
        ("o-17", b"o-17"),
        (17, b"17"),
        (True, b"true"),
        (Decimal("1.50"), b"1.50"),
        (b"\xff", b"\xff"),
        ({"a": [1, "x"]}, b'{"a":[1,"x"]}'),
        ("x" * 1_000_000, b"x" * 1_000_000),
    ],
)
def test_a_header_of_any_type_is_its_text(value, known_by):
    assert identity_reader("header:id")(arrived(headers={"id": value})).id == known_by


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_equal_bodies_are_one_message_and_others_are_others(one, other):
    read = identity_reader("body")
    assert (read(arrived(one)).id == read(arrived(other)).id) == (one == other)
    assert read(arrived(one)).content == 0


@pytest.mark.parametrize("wanted", ["message_id", "header:id", "header:n", "body"])
@pytest.mark.parametrize("odd", ODD)
def test_no_header_stops_a_message(wanted, odd):
    delivery = Delivery(1, 1, b"", 0, read_properties(properties(ODD[odd])))
    found = identity_reader(wanted)(delivery)
    assert found is None or isinstance(found, Identity)


def test_since_when_it_may_have_been_processed_is_what_it_says_itself():
    now = int(time.time())
    read = identity_reader("body")
    assert read(arrived()).since == 0
    assert read(arrived(timestamp=now - 100)).since == now - 100
    # The publisher's clock is ahead, or it writes milliseconds: the message is as old as its
    # delivery.
    assert read(arrived(timestamp=now + 10_000)).since == 0
    assert read(arrived(timestamp=now * 1000)).since == 0
    died = {"x-tiercel-since": str(now - 500)}
    assert read(arrived(headers=died)).since == now - 500
    assert read(arrived(headers=died, timestamp=now - 900)).since == now - 900
    for nonsense in ("x", "", "-5", 7.5, [], "9" * 30):
        assert read(arrived(headers={"x-tiercel-since": nonsense})).since == 0


@pytest.mark.parametrize("mark", ["9" * 4_301, "9" * 100_000, [[]], {"a": "b"}, b"17", True])
def test_a_mark_that_tiercel_cannot_have_written_is_ignored(mark):
    read = identity_reader("message_id")
    said = BasicProperties(message_id="m", headers={"x-tiercel-since": mark})
    properties_read = read_properties(b"".join(said.encode()))
    assert read(Delivery(1, 1, b"body", 0, properties_read)).since == 0


def test_a_mark_that_is_nested_too_deep_to_be_shown_is_ignored():
    deep: list = []
    for _ in range(20_000):
        deep = [deep]
    assert (
        identity_reader("message_id")(
            arrived(message_id="m", headers={"x-tiercel-since": deep})
        ).since
        == 0
    )


@pytest.mark.parametrize("wanted", ["", "id", "header:", "headers", "Body", 7, "header"])
def test_what_cannot_identify_is_refused_in_one_line(wanted):
    with pytest.raises(ValueError, match='identity must be "message_id", "header:NAME" or "body"'):
        identity_reader(wanted)
    with pytest.raises(ValueError, match="identity must be"):
        QueueSpout("q", identity=wanted)


def test_a_spout_of_another_kind_gives_text_or_bytes():
    assert as_identity("a") == as_identity(b"a") == as_identity(Identity(b"a"))
    assert as_identity("\ud800").id
    with pytest.raises(ValueError, match="identified by text or bytes"):
        as_identity(17)


BY_USER = ["user_id", "message_id"]


def test_one_id_of_two_users_is_two_identities():
    read = identity_reader(BY_USER, "tiercel")
    ann = read(arrived(user_id="ann", message_id="7"))
    assert read(arrived(user_id="ann", message_id="7")) == ann
    assert read(arrived(user_id="bob", message_id="7")).id != ann.id
    assert read(arrived(user_id="ann 7", message_id="")) is None
    assert (
        read(arrived(user_id="a", message_id="b c")).id
        != read(arrived(user_id="a b", message_id="c")).id
    )


def test_without_a_user_that_was_checked_there_is_no_identity():
    assert identity_reader(BY_USER, "tiercel")(arrived(message_id="7")) is None


@pytest.mark.parametrize("copied_by", [None, "bob"])
def test_the_user_in_the_header_of_a_copy_counts_for_copies_of_our_own_user_alone(copied_by):
    read = identity_reader(BY_USER, "tiercel")
    ann = read(arrived(user_id="ann", message_id="7"))
    told = {"x-tiercel-user": "ann"}
    assert read(arrived(user_id="tiercel", message_id="7", headers=told)) == ann
    assert read(arrived(user_id=copied_by, message_id="7", headers=told)) != ann


@pytest.mark.parametrize(
    "wanted", [["user_id"], ["message_id", "user_id"], ["user_id", "id"], ["user_id", BY_USER], []]
)
def test_other_pairs_are_refused_with_what_there_is(wanted):
    with pytest.raises(ValueError, match=r'"body", or \["user_id", one of these\]'):
        QueueSpout("orders", identity=wanted)

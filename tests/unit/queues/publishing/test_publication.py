"""A published message: when it should come back, and how a return is matched to it."""

from __future__ import annotations

import pytest
from pika import spec

from tiercel.queues.message.writing import write_properties
from tiercel.queues.publishing.outlet import Publication, returned


def publication(routing_key="k", exchange="e", body=b"body", **values):
    return Publication(exchange, routing_key, body, write_properties(values), lambda _error: None)


def found(waiting, like, **values):
    """Return the index in ``waiting`` of the message that a return like this belongs to."""
    method = spec.Basic.Return(312, "NO_ROUTE", like.exchange, like.routing_key)
    message = returned(waiting, method, write_properties(values), like.body)
    return None if message is None else waiting.index(message)


@pytest.mark.parametrize(
    ("exchange", "routing_key", "mandatory"),
    [
        ("", "queue", True),
        ("", "amq.gen-1", True),
        ("", "amq.rabbitmq.reply-to.g1h2", False),
        ("e", "amq.rabbitmq.reply-to.g1h2", True),
    ],
)
def test_all_but_direct_replies_come_back_where_no_queue_takes_them(
    exchange, routing_key, mandatory
):
    assert publication(routing_key, exchange).mandatory is mandatory


def test_a_return_is_of_the_message_that_is_equal_in_all_that_a_route_depends_on():
    waiting = [
        publication(message_id="m", headers={"tenant": "a"}),
        publication(message_id="m", headers={"tenant": "b"}),
        publication(message_id="m", headers={"tenant": "b"}, routing_key="other"),
        publication(message_id="m", headers={"tenant": "b"}, exchange="other"),
        publication(message_id="n", headers={"tenant": "b"}),
    ]
    for place, tenant in ((1, "b"), (0, "a"), (2, "b"), (3, "b")):
        like = waiting[place]
        assert found(waiting, like, message_id="m", headers={"tenant": tenant}) == place
    assert found(waiting, waiting[4], message_id="n", headers={"tenant": "b"}) == 4
    assert found(waiting, publication("nowhere"), message_id="m") is None


def test_of_equal_messages_the_first_comes_back_first():
    waiting = [publication(message_id="m") for _ in range(3)]
    for place in range(3):
        assert found(waiting, waiting[0], message_id="m") == place
        waiting[place].returned = True
    assert found(waiting, waiting[0], message_id="m") is None


def test_a_header_that_the_broker_wrote_in_another_way_does_not_hide_a_return():
    waiting = [publication(message_id="m", headers={"n": 1})]
    assert found(waiting, waiting[0], message_id="m", headers={"n": "one"}) == 0

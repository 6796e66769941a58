"""Settings of a queue spout, before any broker is involved."""

import copy
import pickle
from dataclasses import dataclass

import pytest

from tiercel import QueueSpout, SpoutContext
from tiercel.queues.errors import AddressError, SchemaError
from tiercel.queues.queue_spout import MessageId


@dataclass
class Order:
    order: int
    note: str | None = None


def test_a_model_takes_the_place_of_fields_and_travels():
    spout = pickle.loads(pickle.dumps(QueueSpout("orders", model=Order)))
    assert spout.output_fields == "`order` long, `note` string?"
    assert spout.decoder()(b'{"order": 1}') == [1, None]


def test_it_travels_before_it_is_opened():
    spout = pickle.loads(
        pickle.dumps(QueueSpout("q", "n long, w string", prefetch=7, delivery_limit=3))
    )
    assert spout.output_fields == "n long, w string"
    assert spout.queue.name == "q"
    assert spout.queue.dead == "q.dead"
    assert spout.queue.delivery_limit == 3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"queue": ""}, ValueError), ({"queue": "q" * 251}, ValueError),
        ({"queue": None}, ValueError), ({"queue": 5}, ValueError), ({"queue": b"q"}, ValueError),
        ({"queue": "q", "prefetch": 2.5}, ValueError),
        ({"queue": "q", "prefetch": "5"}, ValueError),
        ({"queue": "q", "delivery_limit": "5"}, ValueError),
        ({"queue": "q", "delivery_limit": 2.5}, ValueError),
        ({"queue": "q", "retry": 5}, ValueError),
        ({"queue": "q", "fields": ["word"]}, SchemaError),
        ({"queue": "q", "fields": 5}, SchemaError),
        ({"queue": "q", "prefetch": 0}, ValueError),
        ({"queue": "q", "prefetch": 65536}, ValueError),
        ({"queue": "q", "delivery_limit": 0}, ValueError),
        ({"queue": "q", "fields": "a strin"}, SchemaError),
        ({"queue": "q", "fields": "a int", "format": "text"}, SchemaError),
        ({"queue": "q", "properties": ["colour"]}, SchemaError),
        ({"queue": "q", "properties": "message_id"}, SchemaError),
        ({"queue": "q", "fields": "type string", "properties": ["type"]}, SchemaError),
        ({"queue": "q", "bindings": [("e", "k")], "declare": False}, ValueError),
        ({"queue": "q", "fields": "a int DEFAULT 'x'"}, SchemaError),
        ({"queue": "q", "model": int}, SchemaError),
        ({"queue": "q", "model": Order, "fields": "a int"}, ValueError),
        ({"queue": "q", "model": Order, "format": "text"}, ValueError),
        ({"queue": "orders\n"}, ValueError),
        ({"queue": "\ud800"}, ValueError),
    ],
)  # fmt: skip
def test_nonsense_is_refused_where_it_is_written(arguments, error):
    with pytest.raises(error):
        QueueSpout(**arguments)


def test_a_bad_address_is_refused_at_open(spout_context):
    with pytest.raises(AddressError):
        QueueSpout("q").open({"amqp_url": "http://x"}, spout_context)


@pytest.fixture
def spout_context():
    return SpoutContext(
        topology="t",
        component="c",
        task_id=1,
        task_index=0,
        parallelism=1,
        wake=lambda: None,
        count=lambda name, count: None,
    )


def test_calls_before_open_say_so():
    with pytest.raises(RuntimeError, match="open"):
        QueueSpout("q").next_tuple(None)


def test_properties_are_columns_after_the_body_s_and_leave_its_format_alone():
    spout = QueueSpout("q", "line string", properties={"message_id": "id", "headers": "headers"})
    spout = pickle.loads(pickle.dumps(spout))
    assert spout.output_fields == "line string, `id` string, `headers` map<string,string>"
    assert spout.body_fields == "line string"
    assert copy.deepcopy(spout).properties == spout.properties


def test_a_message_is_named_by_its_tag_in_the_log():
    assert str(MessageId(task=1, epoch=2, tag=301)) == "301 of channel 2"

"""Options are read strictly: a typo is an error that lists the valid options."""

from __future__ import annotations

import pytest

from tiercel.frames.errors import OptionError
from tiercel.frames.options import SinkOptions, SourceOptions

URL = "amqp://user:secret@host:5672/vhost"
MIB = 1024 * 1024


def source(**options):
    return SourceOptions.read({"url": URL, "queue": "orders"} | options)


def sink(**options):
    return SinkOptions.read({"url": URL} | options)


def test_a_queue_and_an_address_are_enough():
    found = source()
    assert found.queues == ("orders",)
    assert (found.address.user, found.address.vhost) == ("user", "vhost")
    assert (found.max_messages, found.max_bytes, found.is_bounded) == (30_000, 64 * MIB, False)
    assert (found.partitions, found.delivery_limit) == (1, 20)


def test_options_ignore_case_as_in_all_of_spark():
    found = source(MAXMESSAGESPERTRIGGER="5", maxbytespertrigger="7")
    assert (found.max_messages, found.max_bytes, found.is_bounded) == (5, 7, True)


def test_a_consumer_holds_two_batches_and_at_least_one_message():
    assert source(maxMessagesPerTrigger="5").prefetch == 10
    assert source().prefetch == 60_000
    assert source(maxMessagesPerTrigger="1000000").prefetch == 65_535
    assert source(maxBytesPerTrigger="1").bytes_held == 16 * MIB


@pytest.mark.parametrize(
    ("text", "queues"),
    [
        ("a,b", ("a", "b")),
        (" a , b ", ("a", "b")),
        ('["a,b", "c"]', ("a,b", "c")),
    ],
)
def test_several_queues_have_commas_between(text, queues):
    assert source(queue=text).queues == queues


def test_a_batch_that_arrow_could_not_hold_is_refused():
    assert source(maxBytesPerTrigger=str(1024 * MIB)).max_bytes == 1024 * MIB
    with pytest.raises(OptionError, match="whole number from 1 to 1,073,741,824, not '1073741825'"):
        source(maxBytesPerTrigger="1073741825")


@pytest.mark.parametrize("text", ["a,", "a,a", "[1]", "[", "[]", "x" * 251])
def test_a_list_of_queues_that_is_none_is_refused(text):
    with pytest.raises(OptionError, match="queue"):
        source(queue=text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queu": "orders"}, "no option 'queu' to read rabbitmq with; the options are url, queue"),
        ({"provider": "rabbitmq", "owner": "me"}, "is no table, .* CREATE TEMPORARY VIEW … USING"),
        ({"url": ""}, r'needs option\("url", …\), such as amqp://'),
        ({"queue": ""}, r'needs option\("queue"'),
        ({"url": "http://x"}, "url: the AMQP URL begins with 'http'"),
        ({"partitions": "0"}, "partitions is a whole number from 1 to 1,000, not '0'"),
        ({"maxMessagesPerTrigger": "-1"}, "maxMessagesPerTrigger is a whole number"),
        ({"maxMessagesPerTrigger": "9" * 400}, "maxMessagesPerTrigger is a whole number"),
        ({"bodyFormat": "xml", "fields": "a int"}, "bodyFormat is text, json or bytes"),
        ({"bodyFormat": "json"}, "bodyFormat needs fields"),
        ({"fields": " "}, "fields names the columns of a body"),
        ({"columnNameOfCorruptRecord": "bad"}, "columnNameOfCorruptRecord needs fields"),
        (
            {"columnNameOfCorruptRecord": "", "fields": "a int"},
            "columnNameOfCorruptRecord is a name, not ''",
        ),
        (
            {"columnNameOfCorruptRecord": "a`b", "fields": "a int"},
            "columnNameOfCorruptRecord is a name, not 'a`b'",
        ),
    ],
)
def test_what_cannot_be_read_says_what_to_write(options, said):
    with pytest.raises(OptionError, match=said):
        source(**options)


def test_no_error_shows_the_password():
    with pytest.raises(OptionError) as raised:
        source(url="amqp://user:secret@host:0/vhost")
    assert "secret" not in str(raised.value)
    assert "secret" not in f"{source()!r} {sink(queue='orders')!r}"


def test_a_sink_writes_to_a_queue_by_the_default_exchange():
    found = sink(queue="orders")
    assert (found.exchange, found.routing_key, found.mandatory) == ("", "orders", True)


def test_a_sink_leaves_to_the_row_what_no_option_says():
    found = sink(exchange="events")
    assert (found.exchange, found.routing_key) == ("events", None)


def test_options_of_any_stream_are_not_the_sinks():
    assert sink(queue="orders", checkpointLocation="/c", queryName="q").routing_key == "orders"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "a", "exchange": "b"}, "write either queue, or exchange and routingKey"),
        ({"queue": "a", "mandatory": "yes"}, "mandatory is true or false, not 'yes'"),
        ({"queue": "a", "mandatory": "false", "unroutableQueue": "b"}, "does not report messages"),
        ({"queue": "a", "fields": "b"}, "no option 'fields' to write rabbitmq with"),
    ],
)
def test_a_sink_says_what_to_write(options, said):
    with pytest.raises(OptionError, match=said):
        sink(**options)

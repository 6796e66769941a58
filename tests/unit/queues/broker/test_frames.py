"""Our replacements for pika's frame parsing; these tests fail if a new pika parses elsewhere."""

import struct
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pika import BasicProperties, SelectConnection, URLParameters
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel
from pika.exceptions import AMQPError, InvalidFrameError
from pika.frame import Body, Header, Method
from pika.spec import Basic

from tests.support.raw import ODD, properties
from tiercel.queues.broker.frames import Connection, Headers, Properties, read_properties


def frame(wire, body_size=5):
    content = struct.pack(">HHQ", BasicProperties.INDEX, 0, body_size) + wire
    return struct.pack(">BHL", 2, 3, len(content)) + content + b"\xce"


@pytest.fixture
def arrive():
    """``arrive(bytes)`` passes them to a connection as its socket does.

    Returns the frames that the connection parsed.
    """
    loop = IOLoop()
    connection = Connection(
        URLParameters("amqp://localhost/"), custom_ioloop=loop, internal_connection_workflow=False
    )
    frames = []
    connection._process_frame = frames.append

    def feed(data):
        frames.clear()
        connection._on_data_available(data)
        return list(frames)

    yield feed
    loop.close()


@pytest.mark.parametrize("odd", ODD)
def test_pika_reads_a_message_with_any_header_by_our_reader(arrive, odd):
    (header,) = arrive(frame(properties(ODD[odd])))
    assert isinstance(header, Header)
    assert (header.channel_number, header.body_size, header.properties.delivery_mode) == (3, 5, 2)
    assert header.properties.headers.wire == ODD[odd]


def test_a_frame_that_comes_in_pieces_is_waited_for(arrive):
    wire = frame(properties(ODD["name empty"]))
    for piece in (wire[at : at + 1] for at in range(len(wire) - 1)):
        assert arrive(piece) == []
    (header,) = arrive(wire[-1:])
    assert header.properties.headers == {"": True}


def test_other_frames_are_still_pikas(arrive):
    body = struct.pack(">BHL", 3, 3, 5) + b"hello\xce"
    found = arrive(frame(properties(b"")) + body + frame(b"\x00\x00"))
    assert [each.NAME for each in found] == ["Header", "Body", "Header"]
    assert found[1].fragment == b"hello"
    assert found[2].properties.headers is None
    with pytest.raises(InvalidFrameError):
        arrive(frame(properties(b""))[:-1] + b"x")


@pytest.mark.parametrize(
    "wire", [b"", b"\x20", b"\x20\x00\xff\xff\xff\xff", b"\xff\xff" * 9, b"\x80\x00\x09a"]
)
def test_properties_that_are_none_say_so(wire):
    found = read_properties(wire)
    assert found.headers is None or "not AMQP" in found.headers.unreadable
    assert isinstance(found, BasicProperties)


@given(st.binary(max_size=60))
def test_no_bytes_whatever_raise(wire):
    read_properties(wire).encode()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.text(max_size=20),
            "content_encoding": st.text(max_size=20),
            "headers": st.dictionaries(
                st.text(max_size=9), st.none() | st.integers(0, 9) | st.text(max_size=9)
            ),
            "delivery_mode": st.integers(1, 2),
            "priority": st.integers(0, 9),
            "correlation_id": st.text(max_size=20),
            "timestamp": st.integers(0, 2**64 - 1),
            "message_id": st.text(max_size=20),
            "app_id": st.text(max_size=20),
        },
    )
)
def test_all_properties_are_read_as_pika_reads_them_and_written_as_they_came(said):
    wire = b"".join(BasicProperties(**said).encode())
    found = read_properties(wire)
    assert {name: value for name, value in vars(found).items() if value is not None} == said
    assert b"".join(found.encode()) == wire


def test_properties_with_plain_headers_are_written_by_pika():
    assert Properties(headers={"a": "b"}).encode() == BasicProperties(headers={"a": "b"}).encode()
    assert b"".join(Properties(headers=Headers()).encode()) == b"".join(
        BasicProperties(headers={}).encode()
    )


def delivered(body, wire=b"\x00\x00", number=7, redelivered=False, key="q", channel=3):
    """Return the three frames of a message in one string of bytes."""
    method = Basic.Deliver("ctag.1", number, redelivered, "", key)
    begun = Method(channel, method).marshal() + frame(wire, len(body))
    return begun + (Body(channel, body).marshal() if body else b"")


@pytest.fixture
def consume():
    """``consume(pieces)`` passes them to a connection with a channel.

    Returns the calls that its consumer gets.
    """
    loop = IOLoop()
    connection = Connection(
        URLParameters("amqp://localhost/"), custom_ioloop=loop, internal_connection_workflow=False
    )
    channel = Channel(connection, 3, lambda *_: None)
    channel._add_callbacks()
    channel._set_state(channel.OPEN)
    connection._channels[3] = channel
    told = []
    channel._consumers["ctag.1"] = lambda _, method, properties, body: told.append(
        (
            method.delivery_tag,
            method.redelivered,
            method.exchange,
            method.routing_key,
            properties.headers,
            body,
        )
    )

    def feed(pieces):
        told.clear()
        for piece in pieces:
            connection._on_data_available(piece)
        return list(told), connection.frames_received

    yield feed
    loop.close()


@pytest.mark.parametrize("step", [1, 13, 50, 4096])
@pytest.mark.parametrize("odd", [None, *ODD])
def test_messages_are_the_same_whether_they_come_whole_or_in_pieces(consume, odd, step):
    wire = b"\x00\x00" if odd is None else properties(ODD[odd])
    sent = [(1, False, b"hello"), (2, True, b""), (3, False, b"\xce" * 60), (2**63, True, b"x")]
    data = b"".join(delivered(body, wire, number, again, "ö") for number, again, body in sent)
    told, frames = consume(data[at : at + step] for at in range(0, len(data), step))
    assert [(number, again, body) for number, again, _, _, _, body in told] == sent
    assert {(exchange, key) for _, _, exchange, key, _, _ in told} == {("", "ö")}
    assert all(
        headers is None if odd is None else headers.wire == ODD[odd] for *_, headers, _ in told
    )
    assert frames == 3 * len(sent) - 1


def test_a_whole_message_is_one_frame(arrive):
    (found,) = arrive(delivered(b"hello"))
    assert (found.NAME, found.channel_number, found.body) == ("Message", 3, b"hello")


def test_a_message_for_no_channel_and_a_key_that_is_no_text_are_pikas(consume, arrive):
    assert consume(
        [delivered(b"hello", channel=3).replace(b"\x03\x00\x00\x00", b"\x04\x00\x00\x00")]
    ) == ([], 1)
    assert [each.NAME for each in arrive(delivered(b"hello").replace(b"\x01q", b"\x01\xff"))] == [
        "METHOD",
        "Header",
        "Body",
    ]


def test_a_body_in_two_frames_is_pikas(consume):
    begun = Method(3, Basic.Deliver("ctag.1", 7, False, "", "q")).marshal() + frame(b"\x00\x00", 9)
    told, _ = consume([begun + Body(3, b"hello").marshal() + Body(3, b"word").marshal()])
    assert [body for *_, body in told] == [b"helloword"]


def test_a_message_that_does_not_end_where_it_says_is_refused(arrive):
    with pytest.raises(InvalidFrameError):
        arrive(delivered(b"hello")[:-1] + b"x")


@pytest.fixture
def publish():
    """``publish(body)`` writes a message to a connection; ``publish.sent`` has its bytes."""
    loop = IOLoop()
    connection = Connection(
        URLParameters("amqp://localhost/"), custom_ioloop=loop, internal_connection_workflow=False
    )

    def publish(body, routing_key="q"):
        content = (BasicProperties(message_id="m"), body)
        connection._send_message(1, Basic.Publish(routing_key=routing_key), content)

    connection._body_max_length = 131_064
    publish.sent = []
    connection._adapter_emit_data = publish.sent.append
    publish.together = connection.together
    publish.connection = connection
    yield publish
    loop.close()


@given(
    size=st.sampled_from([0, 1, 100, 131_063, 131_064, 131_065, 300_000]),
    exchange=st.text(max_size=20),
    routing_key=st.text(max_size=20),
    mandatory=st.booleans(),
    headers=st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_message_is_written_as_pika_writes_it(publish, size, headers, **method):
    message = (
        Basic.Publish(**method),
        (BasicProperties(headers=headers, priority=3), b"x" * size),
    )
    written = []
    for cls in (Connection, SelectConnection):
        publish.sent.clear()
        cls._send_message(publish.connection, 7, *message)
        written.append(b"".join(publish.sent))
    assert written[0] == written[1]


def test_a_routing_key_that_is_too_long_is_refused_before_anything_is_sent(publish):
    with pytest.raises(AMQPError):
        publish(b"one", routing_key="k" * 256)
    assert publish.sent == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.sampled_from([0, 1, 100, 40_000, 70_000, 200_000]), max_size=12))
def test_messages_published_together_are_the_same_bytes_in_fewer_pieces(publish, sizes):
    publish.sent.clear()
    for size in sizes:
        publish(b"x" * size)
    alone = list(publish.sent)
    publish.sent.clear()
    with publish.together():
        for size in sizes:
            publish(b"x" * size)
    assert b"".join(publish.sent) == b"".join(alone)
    # A piece is written as soon as it reaches this size.
    assert len(publish.sent) <= 1 + sum(map(len, alone)) // 65_536


def test_what_was_published_before_an_error_leaves(publish):
    with suppress(KeyError), publish.together():
        publish(b"one")
        raise KeyError
    together = list(publish.sent)
    publish.sent.clear()
    publish(b"one")
    assert together == publish.sent

"""Declaring queues on a real broker."""

import logging
import re
import socket
import threading
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from tests.support.broker import (
    Desk,
    add_user,
    delete,
    plain_channel,
    put,
    ready,
    set_policy,
    take_all,
    unique,
    version,
    wait_ready,
)
from tests.support.waiting import wait_until
from tiercel.compose.server import free_port
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import look
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import (
    WorkQueue,
    check_server,
    declare_queue,
    declare_work_queue,
    work_queue_arguments,
)
from tiercel.queues.broker.depths import depths
from tiercel.queues.errors import (
    AddressError,
    BrokerRefusedError,
    BrokerUnavailableError,
    QueueMissingError,
    ServerTooOldError,
)
from tiercel.queues.retry import NO_WAIT, BrokerLimit


def read(amqp_url, queue):
    """Declare the queue as the spout worker that reads it."""
    address = Address.parse(amqp_url)
    with connected(address, "test") as connection:
        return declare_work_queue(connection, address, queue)


def is_ours(declared, queue):
    """Return True if the queue dead-letters into our dead-letter queue."""
    found = declared.arguments or {}
    to = found.get("x-dead-letter-exchange"), found.get("x-dead-letter-routing-key")
    return to == ("", queue.dead)


def test_a_new_queue_gets_a_dead_letter_queue_and_declaring_again_changes_nothing(amqp_url):
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    declare_queue(amqp_url, queue)
    assert ready(amqp_url, queue.name) == ready(amqp_url, queue.dead) == 0
    first = read(amqp_url, queue)
    assert is_ours(first, queue)
    declare_queue(amqp_url, queue)
    assert read(amqp_url, queue) == first
    assert ready(amqp_url, queue.name) == ready(amqp_url, queue.dead) == 0


def test_the_broker_itself_moves_what_is_rejected_for_good(amqp_url):
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    declare_queue(amqp_url, queue)
    put(amqp_url, queue.name, b"poison")
    with plain_channel(amqp_url) as channel:
        ((method, _, _),) = islice(channel.consume(queue.name), 1)
        channel.basic_reject(method.delivery_tag, requeue=False)
    wait_ready(amqp_url, queue.dead, 1)
    ((body, headers),) = take_all(amqp_url, queue.dead)
    assert body == b"poison"
    assert headers["x-death"][0]["reason"] == "rejected"


def test_the_limit_of_an_older_tiercel_is_read_and_what_to_do_about_it_is_said(amqp_url, caplog):
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    older = {**work_queue_arguments(queue, version(amqp_url)), "x-delivery-limit": 20}
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.name, durable=True, arguments=older)
    with caplog.at_level(logging.WARNING):
        declared = read(amqp_url, queue)
    assert is_ours(declared, queue)
    assert declared.limit == BrokerLimit(returns=20)
    assert "delete it when it is empty and let tiercel declare it" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"x-delivery-limit": 5}, BrokerLimit(returns=5, deletes=True)),
        (
            {"x-delivery-limit": 5, "x-max-length": 9, "x-overflow": "reject-publish"},
            BrokerLimit(returns=5, deletes=True),
        ),
        ({"x-delivery-limit": 5, "x-dead-letter-exchange": "it's"}, BrokerLimit(returns=5)),
        (
            {"x-single-active-consumer": True, "x-delivery-limit": 7},
            BrokerLimit(returns=7, deletes=True),
        ),
    ],
)
@pytest.mark.parametrize("declare", [True, False])
def test_the_limit_of_a_foreign_queue_is_read(amqp_url, arguments, limit, declare):
    queue = WorkQueue(name=unique(), declare=declare)
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            queue.name, durable=True, arguments={"x-queue-type": "quorum", **arguments}
        )
    put(amqp_url, queue.name, b"still here")
    assert read(amqp_url, queue).limit == limit
    wait_ready(amqp_url, queue.name, 1)


def test_a_quorum_queue_without_a_limit_has_none_before_4_0_and_20_since(amqp_url):
    queue = WorkQueue(name=unique())
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.name, durable=True, arguments={"x-queue-type": "quorum"})
    since = BrokerLimit(returns=20, deletes=True)
    assert read(amqp_url, queue).limit == (since if version(amqp_url) >= (4, 0) else BrokerLimit())


def test_a_queue_whose_messages_are_held_long_has_a_long_consumer_timeout_or_it_is_said(
    amqp_url, caplog
):
    queue = WorkQueue(name=unique(), retry=NO_WAIT, held=timedelta(hours=1))
    declare_queue(amqp_url, queue)
    for _ in range(2):
        declared = read(amqp_url, queue)
        assert is_ours(declared, queue)
    assert bool(declared.consumer_timeout.arguments) == (version(amqp_url) >= (4, 3))
    put(amqp_url, queue.name, b"held")
    with caplog.at_level(logging.WARNING), Desk(amqp_url, queue.name, held=queue.held) as desk:
        desk.ack(desk.next())
        desk.wait_for("acked_to_broker")
    assert caplog.text.count("consumer_timeout = 86400000") == (version(amqp_url) < (3, 12))


def test_a_queue_with_other_arguments_is_used_as_it_is(amqp_url, caplog):
    queue = WorkQueue(name=unique())
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.name, durable=True)
    with caplog.at_level(logging.WARNING):
        assert not is_ours(read(amqp_url, queue), queue)
    assert "used as it is" in caplog.text
    put(amqp_url, queue.name, b"still here")
    wait_ready(amqp_url, queue.name, 1)


OWN = {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": "amq.fanout"}


@pytest.mark.parametrize("arguments", [None, OWN])
def test_who_publishes_to_a_queue_hears_nothing_of_how_it_treats_deliveries(
    amqp_url, arguments, caplog
):
    queue = WorkQueue(name=unique())
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.name, durable=True, arguments=arguments)
    with caplog.at_level(logging.INFO):
        declare_queue(amqp_url, queue)
    assert "used as it is" not in caplog.text
    assert not is_ours(read(amqp_url, queue), queue)


@pytest.mark.parametrize(
    "properties",
    [{"auto_delete": True}, {"durable": True}, {"durable": True, "arguments": OWN}],
)
def test_who_publishes_to_a_queue_that_exists_makes_no_dead_letter_queue(amqp_url, properties):
    queue = WorkQueue(name=unique())
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.name, **properties)
    declare_queue(amqp_url, queue)
    with pytest.raises(QueueMissingError):
        depths(amqp_url, [queue.dead])
    if properties.get("durable"):
        declared = read(amqp_url, replace(queue, declare=False))
        assert (declared.arguments or {}).items() >= properties.get("arguments", {}).items()


def test_a_queue_that_is_deleted_while_its_publisher_looks_is_not_made_without_dead_letters(
    amqp_url, monkeypatch
):
    queue = WorkQueue(name=unique())
    declare_queue(amqp_url, queue)

    def late(connection, name):
        found = look(connection, name)
        for each in (queue.name, queue.dead):
            delete(amqp_url, each)
        return found

    monkeypatch.setattr("tiercel.queues.broker.declare.look", late)
    declare_queue(amqp_url, queue)
    with pytest.raises(QueueMissingError):
        depths(amqp_url, [queue.name])


def test_who_publishes_to_a_queue_of_its_reader_finds_both_queues_as_they_are(amqp_url):
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    made = read(amqp_url, queue)
    put(amqp_url, queue.dead, b"dead")
    declare_queue(amqp_url, queue)
    found = read(amqp_url, queue)
    assert (found, found.arguments) == (made, made.arguments)
    wait_ready(amqp_url, queue.dead, 1)


def test_who_may_only_write_publishes_to_a_queue_that_exists(shared_rabbitmq):
    server = shared_rabbitmq
    queue = WorkQueue(name=unique())
    user = unique()
    read(server.url, queue)
    add_user(server, user, configure="^$", write=".*")
    parts = urlsplit(server.url)
    url = f"amqp://{user}:{user}@{parts.hostname}:{parts.port}/"
    declare_queue(url, queue)
    declared = read(url, replace(queue, declare=False))
    assert declared.arguments is None, "RabbitMQ does not reveal them to this user"


@pytest.mark.parametrize("arguments", [None, OWN])
def test_a_queue_that_its_owner_declares_himself_is_no_reason_for_a_warning(
    amqp_url, arguments, caplog
):
    queue = WorkQueue(name=unique(), declare=False)
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.name, durable=True, arguments=arguments)
    with caplog.at_level(logging.INFO, "tiercel.queues.broker.declare"):
        read(amqp_url, queue)
    assert [record.levelname for record in caplog.records if "used as it is" in record.message] == [
        "INFO"
    ]


AUTO_DELETE = {"auto_delete": True}
STREAM = {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-length-bytes": 10**9}}


@pytest.mark.parametrize("declare", [True, False])
@pytest.mark.parametrize(
    ("properties", "why"),
    [
        pytest.param(
            AUTO_DELETE,
            "is auto-delete: .* worker or query; declare it again without auto_delete",
            id="auto-delete",
        ),
        pytest.param(
            {**AUTO_DELETE, "durable": True}, "is auto-delete", id="durable and auto-delete"
        ),
        pytest.param(STREAM, "is a stream.* bind a quorum queue", id="stream"),
    ],
)
def test_a_queue_that_cannot_keep_what_is_not_acked_is_refused_before_anything_is_consumed(
    amqp_url, properties, why, declare
):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, **properties)
        put(amqp_url, name, *[b"%d" % number for number in range(10)])
        with Desk(amqp_url, name, declare=declare) as desk:
            error = wait_until(desk.consumer.error, message="the refusal")
        assert isinstance(error, BrokerRefusedError)
        assert re.search(why, str(error))
        assert "\n" not in str(error)
        assert desk.counts["delivered"] == 0
        wait_ready(amqp_url, name, 10)
        channel.queue_delete(name)


@pytest.mark.parametrize("declare", [True, False])
def test_a_queue_that_is_exclusive_to_another_connection_is_refused(amqp_url, declare):
    with plain_channel(amqp_url) as channel:
        name = unique()
        channel.queue_declare(name, exclusive=True)
        with pytest.raises(BrokerRefusedError, match=r"is exclusive: .* without exclusive$"):
            read(amqp_url, WorkQueue(name=name, declare=declare))


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"durable": False}, "a restart of RabbitMQ deletes it: declare it durable"),
        (
            {"arguments": {"x-max-length": 5_000}},
            "the oldest are deleted above 5,000 messages (x-max-length): set a dead-letter",
        ),
        (
            {"arguments": {"x-queue-type": "quorum", "x-max-length-bytes": 70_000}},
            "the oldest are deleted above 70,000 bytes (x-max-length-bytes): set a dead-letter",
        ),
        (
            {"arguments": {"x-message-ttl": 60_000}},
            "messages are deleted after 60 s (x-message-ttl): set a dead-letter exchange",
        ),
        (
            {"arguments": {"x-expires": 90_000, "x-dead-letter-exchange": "amq.fanout"}},
            "it is deleted after 90 s without a consumer: remove x-expires",
        ),
        ({"arguments": {"x-max-length": 5_000, "x-overflow": "reject-publish"}}, ""),
        ({"arguments": {"x-message-ttl": 60_000, "x-dead-letter-exchange": "amq.fanout"}}, ""),
    ],
)
def test_a_queue_that_may_lose_messages_is_named_once_in_one_line(
    amqp_url, caplog, properties, said
):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, **{"durable": True, **properties})
    with caplog.at_level(logging.WARNING), Desk(amqp_url, name, declare=False) as desk:
        for number in range(2):
            put(amqp_url, name, b"%d" % number)
            desk.ack(desk.next())
            desk.wait_for("acked_to_broker", number + 1)
            desk.on_channel(lambda channel: channel.connection.close())
            desk.wait_for("channels", number + 2)
    lines = [record.message for record in caplog.records if "may lose" in record.message]
    assert len(lines) == bool(said)
    assert all(line.startswith(f"queue {name} may lose messages: {said}") for line in lines)


def test_what_policies_delete_is_named_where_the_management_interface_is_known(
    shared_rabbitmq, caplog
):
    server = shared_rabbitmq
    queue = WorkQueue(name=unique())
    set_policy(server, queue.name, f"^{queue.name}", {"expires": 3600000, "max-length": 9})
    with (
        caplog.at_level(logging.WARNING),
        Desk(server.url, queue.name, management_url=server.management_url) as desk,
    ):
        desk.wait_for("channels")
    lines = [record.message for record in caplog.records if "may lose" in record.message]
    reason = "it is deleted after 3600 s without a consumer"
    expires = f"{reason}: remove expires of policy '{queue.name}'"
    assert lines[0] == f"queue {queue.name} may lose messages: {expires}"
    assert lines[1].startswith(f"queue {queue.dead} may lose messages: {expires}; the oldest are")


def test_who_may_not_configure_learns_of_a_stream_by_the_management_interface(shared_rabbitmq):
    server = shared_rabbitmq
    name = user = unique()
    with plain_channel(server.url) as channel:
        channel.queue_declare(name, **STREAM)
    add_user(server, user, configure="^$", write="^$", tags="management")
    parts = urlsplit(server.url)
    url = f"amqp://{user}:{user}@{parts.hostname}:{parts.port}/"
    management_url = re.sub("//.*@", "//", server.management_url)
    with Desk(url, name, declare=False, management_url=management_url) as desk:
        error = wait_until(desk.consumer.error, message="the refusal")
    assert "is a stream" in str(error)


def test_a_queue_that_must_exist_is_not_made(amqp_url):
    queue = WorkQueue(name=unique(), declare=False)
    with pytest.raises(QueueMissingError, match=queue.name):
        declare_queue(amqp_url, queue)


def test_a_refused_login_is_one_line_without_the_password(amqp_url):
    wrong = amqp_url.replace("://", "://nobody:hush-hush@").replace(
        amqp_url.split("://")[1].rpartition("@")[0] + "@", ""
    )
    with pytest.raises(BrokerRefusedError, match="refused the login of user 'nobody'") as caught:
        declare_queue(wrong, WorkQueue(name=unique()))
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_virtual_host_is_named(amqp_url):
    base = amqp_url.partition("://")[0] + "://" + amqp_url.partition("://")[2].partition("/")[0]
    with pytest.raises(BrokerRefusedError, match="virtual host 'nowhere'"):
        declare_queue(f"{base}/nowhere", WorkQueue(name=unique()))


def test_nobody_listening_is_unavailable_after_the_patience():
    with pytest.raises(BrokerUnavailableError, match="nothing listens"):
        declare_queue(f"amqp://127.0.0.1:{free_port()}", WorkQueue(name="q"))


def test_something_else_listening_says_to_check_the_port(web_server):
    with pytest.raises((BrokerRefusedError, BrokerUnavailableError), match="check"):
        declare_queue(f"amqp://127.0.0.1:{web_server}", WorkQueue(name="q"))


@pytest.mark.parametrize("name", ["orders\n", "or\rders", "\ud800"])
def test_a_name_that_rabbitmq_would_change_is_refused_and_not_waited_for(amqp_url, name):
    with pytest.raises(ValueError, match="1 to 250 bytes without line breaks, not "):
        declare_queue(amqp_url, WorkQueue(name=name))


def test_a_bad_address_is_refused_before_anything_is_tried():
    with pytest.raises(AddressError):
        declare_queue("http://localhost", WorkQueue(name="q"))


@pytest.mark.parametrize("text", ["3.9.29", "3.8", "", "next"])
def test_an_old_server_is_refused(text):
    with pytest.raises(ServerTooOldError, match=r"needs RabbitMQ 3\.10"):
        check_server(answering(text), "amqp://host")


@pytest.mark.parametrize(
    ("text", "numbers"), [("3.10.8", (3, 10)), ("4.3.0-rc.1", (4, 3)), ("10.0", (10, 0))]
)
def test_a_new_server_is_welcome(text, numbers):
    assert check_server(answering(text), "amqp://host") == numbers


def answering(text):
    return SimpleNamespace(
        _impl=SimpleNamespace(server_properties={"product": "RabbitMQ", "version": text})
    )


@pytest.fixture
def web_server():
    def answer():
        with listener.accept()[0] as connection:
            connection.recv(8)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]

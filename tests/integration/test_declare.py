"""What queues are declared as, on a real broker."""

import logging
import socket
import threading
from itertools import islice
from types import SimpleNamespace

import pytest

from queues.declare import WorkQueue, check_server, declare_queue
from queues.errors import AddressError, BrokerRefusedError, BrokerUnavailableError, QueueMissingError, ServerTooOldError
from queues.retry import NO_WAIT
from tests.broker import plain_channel, put, ready, take_all, unique, wait_ready


def test_a_new_queue_gets_a_dead_letter_queue_and_declaring_again_changes_nothing(amqp_url):
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    assert declare_queue(amqp_url, queue).ours
    assert declare_queue(amqp_url, queue).ours
    assert ready(amqp_url, queue.name) == ready(amqp_url, queue.dead) == 0


def test_the_broker_itself_moves_what_was_delivered_too_often(amqp_url):
    queue = WorkQueue(name=unique(), delivery_limit=2, retry=NO_WAIT)
    declare_queue(amqp_url, queue)
    put(amqp_url, queue.name, b"poison")
    with plain_channel(amqp_url) as channel:
        for method, _, _ in islice(channel.consume(queue.name), 3):
            channel.basic_reject(method.delivery_tag, requeue=True)
    wait_ready(amqp_url, queue.dead, 1)
    ((body, headers),) = take_all(amqp_url, queue.dead)
    assert body == b"poison"
    assert headers["x-death"][0]["reason"] == "delivery_limit"


def test_a_queue_with_other_arguments_is_used_as_it_is(amqp_url, caplog):
    queue = WorkQueue(name=unique())
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.name, durable=True)
    with caplog.at_level(logging.WARNING):
        assert not declare_queue(amqp_url, queue).ours
    assert "used as it is" in caplog.text
    put(amqp_url, queue.name, b"still here")
    wait_ready(amqp_url, queue.name, 1)


def test_a_queue_that_must_exist_is_not_made(amqp_url):
    queue = WorkQueue(name=unique(), declare=False)
    with pytest.raises(QueueMissingError, match=queue.name):
        declare_queue(amqp_url, queue)


def test_a_refused_login_is_one_line_without_the_password(amqp_url):
    wrong = amqp_url.replace("://", "://nobody:hush-hush@").replace(amqp_url.split("://")[1].rpartition("@")[0] + "@", "")
    with pytest.raises(BrokerRefusedError, match="refused the login of user 'nobody'") as caught:
        declare_queue(wrong, WorkQueue(name=unique()))
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_virtual_host_is_named(amqp_url):
    base = amqp_url.partition("://")[0] + "://" + amqp_url.partition("://")[2].partition("/")[0]
    with pytest.raises(BrokerRefusedError, match="virtual host 'nowhere'"):
        declare_queue(f"{base}/nowhere", WorkQueue(name=unique()))


def test_nobody_listening_is_unavailable_after_the_patience(free_port):
    with pytest.raises(BrokerUnavailableError, match="nothing listens"):
        declare_queue(f"amqp://127.0.0.1:{free_port}", WorkQueue(name="q"))


def test_something_else_listening_says_to_check_the_port(web_server):
    with pytest.raises((BrokerRefusedError, BrokerUnavailableError), match="check"):
        declare_queue(f"amqp://127.0.0.1:{web_server}", WorkQueue(name="q"))


def test_a_bad_address_is_refused_before_anything_is_tried():
    with pytest.raises(AddressError):
        declare_queue("http://localhost", WorkQueue(name="q"))


@pytest.mark.parametrize("version", ["3.9.29", "3.8", "", "next"])
def test_an_old_server_is_refused(version):
    with pytest.raises(ServerTooOldError, match=r"needs RabbitMQ 3\.10"):
        check_server(answering(version), "amqp://host")


@pytest.mark.parametrize(("version", "numbers"), [("3.10.8", (3, 10)), ("4.3.0-rc.1", (4, 3)), ("10.0", (10, 0))])
def test_a_new_server_is_welcome(version, numbers):
    assert check_server(answering(version), "amqp://host") == numbers


def answering(version):
    return SimpleNamespace(_impl=SimpleNamespace(server_properties={"product": "RabbitMQ", "version": version}))


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def web_server():
    def answer():
        with listener.accept()[0] as connection:
            connection.recv(8)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]

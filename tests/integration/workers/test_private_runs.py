"""Commands without an address use the private servers of a run, and say which run."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.support.broker import plain_channel
from tests.support.terminal import Ended, command
from tests.support.waiting import wait_until
from tiercel import QueueSpout, TopologyBuilder
from tiercel.acker.redis.clients import connect
from tiercel.compose.embedded import EmbeddedRedis, EmbeddedServices
from tiercel.compose.errors import PortTakenError
from tiercel.workers.config import Settings
from tiercel.workers.local import private as private_servers
from tiercel.workers.local.addresses import claimed


@pytest.fixture
def tiercel(tmp_path, monkeypatch, capsys) -> Callable[..., Ended]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("AMQP", "REDIS", "MANAGEMENT"):
        monkeypatch.delenv(f"TIERCEL_{name}", raising=False)

    return partial(command, capsys, body="one\n")


@pytest.fixture
def orders(tiercel, amqp_url, redis_url) -> Iterator[str]:
    found = Settings(amqp=amqp_url, redis=redis_url)
    with claimed("orders", ("private-runs",)) as claim, claim.announced(found):
        yield f"tiercel: on the private servers of the run of orders (process {os.getpid()})\n"


@pytest.mark.parametrize(
    "command",
    [
        ("publish", "private-runs", "-"),
        ("dead-letters", "show", "private-runs"),
        ("dead-letters", "requeue", "private-runs", "--all", "--yes"),
        ("dead-letters", "purge", "private-runs", "--yes"),
        ("depths", "private-runs"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_about_queues_says_whose_servers_it_asks(tiercel, orders, command):
    tiercel("publish", "private-runs", "-")
    ended = tiercel(*command)
    assert ended.code == 0, ended.stderr
    assert orders in ended.stderr
    assert orders not in ended.stdout


@pytest.mark.parametrize("command", ["errors", "activate", "kill", "rebalance", "top"])
def test_a_command_about_topologies_says_whose_servers_it_asks(tiercel, orders, command):
    ended = tiercel(command, "no-such-topology")
    assert ended.code == 2
    assert ended.stderr.startswith(orders)


def test_of_several_runs_the_one_is_asked_that_has_the_queue(tiercel, orders):
    with (
        claimed("letters", ("post",)) as claim,
        claim.announced(Settings(amqp="amqp://u:p@127.0.0.1:1/", redis="redis://:p@127.0.0.1:1/0")),
    ):
        unsure = tiercel("depths")
        assert unsure.code == 2
        assert "letters (process " in unsure.stderr
        assert "orders (process " in unsure.stderr
        assert orders in tiercel("publish", "private-runs", "-").stderr
        assert orders in tiercel("depths", "--run", "orders").stderr
        assert "run of letters" in tiercel("errors", "letters").stderr
        assert "run of letters" in tiercel("state", "letters", "post").stderr
        assert orders in tiercel("peek", "private-runs.dead").stderr


def test_a_server_that_is_named_is_asked_and_nothing_is_said(tiercel, orders, amqp_url):
    ended = tiercel("publish", "private-runs", "-", TIERCEL_AMQP=amqp_url)
    assert (ended.code, ended.stderr.strip()) == (0, "")


def test_a_run_that_is_there_refuses_a_second_one_before_it_starts_anything(tiercel):
    with claimed("reliable-sentences"):
        ended = tiercel("run", "tiercel.examples.reliable_sentences:topology")
    assert ended.code == 2
    assert f"is already running here (process {os.getpid()})" in ended.stderr
    assert "starting" not in ended.stderr


def test_nothing_is_kept_of_servers_that_are_named(tiercel, tmp_path, amqp_url, redis_url):
    ended = tiercel(
        "run",
        "tiercel.examples.reliable_sentences:topology",
        "--keep",
        str(tmp_path / "data"),
        TIERCEL_AMQP=amqp_url,
        TIERCEL_REDIS=redis_url,
    )
    assert ended.code == 2
    assert "both servers are named" in ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.fixture
def private(tiercel) -> Iterator[tuple[Settings, EmbeddedServices, threading.Event]]:
    """The private servers of a run, as the run itself starts them."""
    made = []

    class Seen(EmbeddedServices):
        def start(self):
            made.append(self)
            return super().start()

    stopped = threading.Event()
    builder = TopologyBuilder("restarts")
    builder.set_spout("lines", QueueSpout("restarts", fields="line string"))
    with (
        patch.object(private_servers, "EmbeddedServices", Seen),
        private_servers.servers(Settings(), builder.build(), stopped=stopped) as found,
    ):
        yield found, made[0], stopped


@pytest.mark.embedded
def test_a_private_server_that_dies_is_named_and_started_again_at_its_address(private, caplog):
    found, services, stopped = private
    caplog.set_level("INFO", "tiercel")
    for server in (services.redis, services.rabbitmq):
        os.kill(server.pid, signal.SIGKILL)
        wait_until(
            lambda name=server.name: (
                f"the private {name} is back at its address" in caplog.messages
            ),
            60,
            "its restart",
        )
        line = f"the private {server.name} has died; restarting it with the data that it kept"
        assert caplog.messages.count(line) == 1
    with closing(connect(found.redis)) as client:
        assert client.ping()
    with plain_channel(found.amqp) as channel:
        channel.queue_declare("restarts", durable=True)
    assert not stopped.is_set()


@pytest.mark.embedded
def test_a_private_server_that_cannot_be_started_again_ends_the_run_with_the_reason(tiercel):
    stopped = threading.Event()
    with EmbeddedRedis() as redis, closing(socket.socket()) as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        services = SimpleNamespace(redis=redis, rabbitmq=redis)
        redis.stop()
        taker.bind(("127.0.0.1", redis._port))
        taker.listen()
        with (
            pytest.raises(PortTakenError, match="ended while it started"),
            private_servers._started_again(services, stopped),
        ):
            assert stopped.wait(30)

"""The embedded services, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
import yaml
from redis import Redis
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.broker import plain_channel, restart_in_order
from tests.support.waiting import wait_until
from tiercel.compose import embedded, install
from tiercel.compose.embedded import EmbeddedRabbitMQ, EmbeddedRedis, EmbeddedServices
from tiercel.compose.errors import (
    PortTakenError,
    ServiceMissingError,
    ServiceStartError,
    ServiceStoppedError,
)
from tiercel.compose.install import PLAIN_ENVIRONMENT as PLAIN
from tiercel.compose.install import root_prefix
from tiercel.compose.server import free_port
from tiercel.queues.publishing.publisher import Publisher

pytestmark = pytest.mark.embedded


def alive(pid: int) -> bool:
    """A zombie that has not been reaped yet counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def processes_with(text: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if (
                    text.encode()
                    in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
                ):
                    found.append(int(folder.name))
            except OSError:
                continue
    return [pid for pid in found if alive(pid)]


def test_both_servers_serve_clients_once_started(services: EmbeddedServices) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(services.amqp_url))
    assert connection.is_open
    connection.close()
    with Redis.from_url(services.redis_url) as client:
        assert client.ping()


def test_both_servers_listen_on_loopback_only_and_ask_for_a_password(
    services: EmbeddedServices,
) -> None:
    for url in (services.amqp_url, services.redis_url):
        assert "@127.0.0.1:" in url
    anonymous = services.redis_url.split("@")[1]
    with (
        Redis.from_url(f"redis://{anonymous}") as client,
        pytest.raises(Exception, match=r"(?i)auth"),
    ):
        client.ping()


def test_no_password_is_on_a_command_line(services: EmbeddedServices) -> None:
    for url in (services.amqp_url, services.redis_url):
        password = url.split("@")[0].rsplit(":", 1)[1]
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert password.encode() not in cmdline.read_bytes()
            except OSError:
                continue


@pytest.mark.rest
def test_the_cookie_that_commands_the_broker_is_drawn_before_erlang_would(rabbitmq) -> None:
    server = rabbitmq()
    path = server.folder / ".erlang.cookie"
    cookie = path.read_text()
    assert len(cookie) == 64
    assert int(cookie, 16) > 0, "Erlang's own are twenty letters"
    assert path.stat().st_mode & 0o777 == 0o400
    assert server.folder.stat().st_mode & 0o777 == 0o700
    assert cookie in server.control("eval", "erlang:get_cookie().")
    server.restart(keep_data=True)
    assert path.read_text() == cookie


def test_redis_keeps_its_data_over_an_orderly_restart_and_nothing_over_a_crash(redis) -> None:
    server = redis()
    with Redis.from_url(server.url) as client:
        client.set("key", "value")
        server.restart(keep_data=True)
        assert client.get("key") == b"value"
        server.kill()
        server.start()
        assert client.get("key") is None


def test_redis_restarted_without_its_data_is_empty_at_the_same_address(redis) -> None:
    server = redis()
    before = server.url
    with Redis.from_url(server.url) as client:
        client.set("key", "value")
        server.restart(keep_data=False)
        assert server.url == before
        assert client.get("key") is None


def test_a_paused_redis_answers_again_when_resumed(redis) -> None:
    server = redis()
    server.pause()
    wait_until(
        lambda: Path(f"/proc/{server.pid}/stat").read_text().split()[2] == "T", message="stopped"
    )
    server.resume()
    with Redis.from_url(server.url) as client:
        assert client.ping()


@pytest.mark.rest
def test_rabbitmq_keeps_messages_over_a_crash_and_no_queue_when_restarted_empty(rabbitmq) -> None:
    server = rabbitmq()
    with plain_channel(server.url) as channel:
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    restart_in_order(server)
    with Publisher(server.url) as publisher:
        publisher.publish("q", [b"body"])
    server.kill()
    server.start()
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        assert connection.channel().basic_get("q", auto_ack=True)[2] == b"body"
    server.restart(keep_data=False)
    with (
        pika.BlockingConnection(pika.URLParameters(server.url)) as connection,
        pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"),
    ):
        connection.channel().queue_declare("q", passive=True)


def test_no_process_and_no_folder_is_left_when_the_parent_is_killed() -> None:
    script = (
        "import os, signal\nfrom tiercel.compose.embedded import EmbeddedServices\ns = "
        "EmbeddedServices().start()\nprint(s.rabbitmq.folder, s.redis.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    folders = [Path(folder) for folder in done.stdout.split()]
    assert len(folders) == 2
    for folder in folders:
        # Every helper process of the servers has the folder in its environment or command line.
        wait_until(
            lambda folder=folder: not processes_with(str(folder)),
            10,
            f"all processes of {folder} are gone",
        )
        wait_until(lambda folder=folder: not folder.exists(), 10, f"{folder} is gone")


def test_closing_leaves_no_process_and_no_folder() -> None:
    server = EmbeddedRedis().start()
    folder = server.folder
    server.close()
    server.close()
    assert not folder.exists()
    wait_until(lambda: not processes_with(str(folder)), 10, "its companion to be gone")


def test_a_server_that_cannot_start_shows_its_last_log_lines() -> None:
    server = EmbeddedRedis()
    server._password = '"'  # an unbalanced quote in the path would break its configuration
    with pytest.raises(
        ServiceStartError, match=r"(?s)Redis ended while it started.*FATAL CONFIG FILE ERROR"
    ):
        server.start()
    server.close()


def test_a_port_that_was_taken_in_between_is_drawn_again(
    monkeypatch, services: EmbeddedServices
) -> None:
    taken = int(services.redis_url.rsplit(":", 1)[1].split("/")[0])
    ports = iter([taken])
    monkeypatch.setattr(embedded, "free_port", lambda: next(ports, None) or free_port())
    with EmbeddedRedis() as server:
        assert f":{taken}/" not in server.url


THIEF = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(os.geteuid(), flush=True)
while True:
    caller, _ = server.accept()
    caller.settimeout(1)
    try:
        while heard := caller.recv(4096):
            print(heard, flush=True)
            caller.sendall(b"+OK\\r\\n+PONG\\r\\n")
    except OSError:
        pass
    caller.close()
"""


@contextmanager
def thief(port: int) -> Iterator[list[str]]:
    """Let another user listen on a port; after the block, the list has the lines it received."""
    prefix = root_prefix()
    if prefix is None:
        pytest.skip("only root can be another user")
    someone = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    # A user's interpreter may be in a folder that other users cannot enter.
    argv = [*prefix, *someone, "/usr/bin/env", "python3", "-c", THIEF, str(port)]
    heard: list[str] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/", env=PLAIN) as process:
        assert process.stdout.readline() == "65534\n"
        try:
            yield heard
        finally:
            subprocess.run([*prefix, "kill", str(process.pid)], check=True)
        heard += process.stdout.read().splitlines()


def test_another_user_who_takes_redis_port_first_hears_no_password(monkeypatch) -> None:
    port = free_port()
    drawn = iter([port])
    monkeypatch.setattr(embedded, "free_port", lambda: next(drawn, None) or free_port())
    with thief(port) as heard, EmbeddedRedis() as server, Redis.from_url(server.url) as client:
        assert f":{port}/" not in server.url
        assert client.ping()
    assert heard == []


def test_another_user_who_takes_the_port_while_redis_is_away_is_named(redis) -> None:
    server = redis()
    server.kill()
    with (
        thief(server._port) as heard,
        pytest.raises(PortTakenError, match=r"another user \(id 65534\)|already in use"),
    ):
        server.start()
    assert heard == []


@pytest.mark.rest
@pytest.mark.parametrize("number", range(3), ids=["AMQP", "HTTP API", "Erlang"])
def test_another_user_who_takes_a_port_of_rabbitmq_first_hears_nothing(monkeypatch, number) -> None:
    port = free_port()
    drawn = iter([port if each == number else free_port() for each in range(3)])
    monkeypatch.setattr(embedded, "free_port", lambda: next(drawn, None) or free_port())
    with (
        thief(port) as heard,
        EmbeddedRabbitMQ() as server,
        plain_channel(server.url) as channel,
    ):
        assert port not in server._ports
        channel.queue_declare("q", durable=True)
    assert heard == []


def test_a_missing_program_is_one_line_that_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(embedded, "find_rabbitmq", lambda: None)
    with pytest.raises(
        ServiceMissingError,
        match=r"^rabbitmq-server not found; install with: sudo apt-get install rabbitmq-server$",
    ):
        EmbeddedRabbitMQ()
    monkeypatch.setitem(install._FINDERS, "redis-server", lambda: None)
    monkeypatch.setattr(install.Apt, "find", classmethod(lambda cls: None))
    with pytest.raises(
        ServiceMissingError,
        match=r"^redis-server not found; install with: sudo apt-get install redis-server$",
    ):
        install.install_missing("redis-server")


@pytest.mark.rest
def test_kept_data_outlive_their_servers_however_these_end(tmp_path: Path) -> None:
    with EmbeddedServices(tmp_path) as services:
        with Publisher(services.amqp_url) as publisher:
            with plain_channel(services.amqp_url) as channel:
                channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
            publisher.publish("q", [b"in order"])
        with Redis.from_url(services.redis_url) as client:
            client.set("key", "in order")
    services = EmbeddedServices(tmp_path).start()
    with Redis.from_url(services.redis_url) as client:
        assert client.get("key") == b"in order"
        client.set("key", "in a crash")
        wait_until(
            lambda: (
                client.info("persistence")["aof_pending_bio_fsync"] == 0
                and client.info("persistence")["aof_buffer_length"] == 0
            ),
            10,
            "the log to be on the disk",
        )
    with Publisher(services.amqp_url) as publisher:
        publisher.publish("q", [b"in a crash"])
    services.rabbitmq.kill()
    services.redis.kill()
    with EmbeddedServices(tmp_path) as later:
        with Redis.from_url(later.redis_url) as client:
            assert client.get("key") == b"in a crash"
        with pika.BlockingConnection(pika.URLParameters(later.amqp_url)) as connection:
            channel = connection.channel()
            bodies = [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)]
    assert sorted(bodies) == [b"in a crash", b"in order"]
    assert (tmp_path / "rabbitmq").stat().st_mode & 0o777 == 0o700
    for password in tmp_path.glob("*/password"):
        assert password.stat().st_mode & 0o777 == 0o600


def test_a_start_is_broken_off_at_once_and_the_next_one_begins_with_whole_data(
    tmp_path: Path,
) -> None:
    stopped = threading.Event()
    stopped_at = []

    def stop():
        stopped_at.append(time.monotonic())
        stopped.set()

    threading.Timer(1, stop).start()
    with pytest.raises(ServiceStoppedError), EmbeddedServices(tmp_path, stopped):
        pass
    # A complete start and an orderly stop take longer than this even on an idle machine.
    assert time.monotonic() - stopped_at[0] < 5
    wait_until(lambda: not processes_with(str(tmp_path)), 10, "no process is left")
    # The broker creates its user at its first start; in a folder of a start without it, every login
    # would be refused.
    with EmbeddedServices(tmp_path) as services, plain_channel(services.amqp_url) as channel:
        channel.queue_declare("q", durable=True)


def test_the_health_check_of_redis_fails_while_it_reads_its_data(tmp_path):
    """Redis asks for the password before it says that it is loading."""
    file = Path(__file__).parents[3] / "compose/docker-compose.yml"
    *shell, check = yaml.safe_load(file.read_text())["services"]["redis"]["healthcheck"]["test"][1:]
    configuration = tmp_path / "redis.conf"
    configuration.write_text("requirepass secret\nbind 127.0.0.1\n")
    port = free_port()
    check = check.replace("$$", "$").replace("/6379", f"/{port}")
    check = check.replace("/run/tiercel/credentials/redis.conf", str(configuration))

    def code() -> int:
        return subprocess.run([*shell, check], stderr=subprocess.DEVNULL, check=False).returncode

    @contextmanager
    def started(*options: str) -> Iterator[Redis]:
        command = ["redis-server", str(configuration), "--port", str(port), "--dir", str(tmp_path)]
        with (
            subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process,
            Redis(port=port, password="secret") as client,
        ):
            try:
                yield client
            finally:
                process.kill()

    with started() as client:
        wait_until(lambda: code() == 0, 20, "Redis to be healthy")
        client.mset({f"key {number}": os.urandom(2048) for number in range(1_000)})
        client.save()
    # It takes a tenth of a second per key, and answers after each.
    slowly = ("--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024")
    with started(*slowly) as client:
        wait_until(lambda: is_loading(client), 20, "Redis to load its data")
        assert code() != 0
        assert is_loading(client)


def is_loading(client: Redis) -> bool:
    try:
        client.ping()
    except BusyLoadingError:
        return True
    except RedisConnectionError:
        return False
    return False

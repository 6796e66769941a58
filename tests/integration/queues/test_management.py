"""RabbitMQ's HTTP API: who gets the login, and what the monitor's user may do with it."""

from __future__ import annotations

import base64
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.broker import set_policy, unique
from tests.support.waiting import wait_until
from tiercel import WorkQueue, declare_queue
from tiercel.compose.credentials import draw_credentials
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.depths import DepthReader
from tiercel.queues.broker.management import (
    ManagementSilentError,
    Rule,
    managed,
    read_alarms,
    read_policies,
)

ADDRESS = Address.parse("amqp://tiercel:S3CRET@rabbit.example/")


@contextmanager
def listening(
    location: str | None = None, code: int = 404, body: bytes = b"{}"
) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the URL of a server, and the logins that it receives.

    It answers with ``code``, and with a redirect to ``location``.
    """
    told: list[str | None] = []

    class Noting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(self.headers.get("Authorization"))
            self.send_response(code)
            if location is not None:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Noting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            b'[{"name": "p", "pattern": "^q$", "definition": {"consumer-timeout": 7200000}}]',
            Rule(value=7_200_000, policy="p"),
        ),
        (b'[{"name": "p", "pattern": "other", "definition": {"consumer-timeout": 1}}]', None),
        (b'[{"name": "p", "pattern": "q", "definition": {"consumer-timeout": "long"}}]', None),
        (b'[{"pattern": "(", "definition": {"consumer-timeout": 1}}]', None),
        (b'[{"pattern": "q", "definition": []}, 5]', None),
        (b"{}", None),
        (b"no JSON", None),
    ],
)
def test_a_policy_tells_what_it_sets_for_a_queue(body, found):
    with listening(code=200, body=body) as (url, _):
        assert read_policies(url, ADDRESS).rule("q", "consumer-timeout") == found


def test_where_no_policy_is_told_there_is_none():
    assert read_policies(None, ADDRESS).rule("q", "expires") is None
    with listening(code=500) as (url, _):
        assert read_policies(url, ADDRESS).rule("q", "expires") is None
    assert read_policies("ftp://nowhere", ADDRESS).rule("q", "expires") is None


def test_the_policy_with_the_highest_priority_counts_and_the_smaller_of_the_operators_number(
    shared_rabbitmq,
):
    server = shared_rabbitmq
    ours = unique()
    queue, all_, first, exchanges, cap = (
        f"{ours}.{end}" for end in ("q", "all", "first", "exchanges", "cap")
    )
    set_policy(server, all_, f"^{ours}", {"expires": 900000, "max-length": 5})
    set_policy(server, first, f"^{ours}", {"expires": 800000}, priority=3)
    others = {"alternate-exchange": "x"}
    set_policy(server, exchanges, f"^{ours}", others, priority=9, apply_to="exchanges")
    set_policy(server, cap, f"^{queue}", {"expires": 700000}, kind="operator-policies")
    policies = read_policies(server.management_url, Address.parse(server.url))
    assert policies.rule(queue, "expires") == Rule(value=700_000, policy=cap)
    assert policies.rule(f"{ours}.other", "expires") == Rule(value=800_000, policy=first)
    assert policies.rule(queue, "max-length") is None


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(code):
    with listening() as (elsewhere, told), listening(f"{elsewhere}/stolen", code) as (url, asked):
        with pytest.raises(ManagementSilentError):
            managed(url, ADDRESS, "q")
        assert (len(asked), told) == (1, [])


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_of_the_environment_is_told_nothing(variable, monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # urllib reads the environment only once
    with listening() as (proxy, told):
        monkeypatch.setenv(variable, proxy)
        with pytest.raises(ManagementSilentError):
            managed("http://rabbit.invalid:15672", ADDRESS, "q")
        assert told == []


def test_an_endless_answer_is_cut_off():
    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"[" * 65536)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(ManagementSilentError):
            managed(f"http://127.0.0.1:{server.server_port}", ADDRESS, "q")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.embedded
def test_the_monitors_user_sees_queues_and_changes_nothing(rabbitmq, tmp_path: Path):
    """The users that compose creates, on a real broker."""
    broker = rabbitmq()
    draw_credentials(tmp_path)
    broker.control("import_definitions", str(tmp_path / "rabbitmq/definitions.json"))
    host = broker.management_url.rpartition("@")[2]
    login = (
        (tmp_path / "monitor/tiercel_management").read_text().partition("://")[2].rpartition("@")[0]
    )
    application = (
        (tmp_path / "spout/tiercel_amqp").read_text().partition("://")[2].rpartition("@")[0]
    )
    declare_queue(
        f"amqp://{application}@{broker.url.rpartition('@')[2]}", WorkQueue(name="watched")
    )
    assert wait_until(
        lambda: managed(f"http://{login}@{host}", ADDRESS, "watched"), 30, "the queue's figures"
    )

    def asked(method: str, path: str, user: str) -> int:
        headers = {
            "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
            "content-type": "application/json",
        }
        request = urllib.request.Request(
            f"http://{host}/api/{path}", method=method, headers=headers, data=b"{}"
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    for method, path in (
        ("DELETE", "queues/%2F/watched"),
        ("DELETE", "queues/%2F/watched/contents"),
        ("PUT", "vhosts/mine"),
    ):
        assert asked(method, path, login) in (401, 403), path
    assert asked("GET", "users", login) in (401, 403)
    assert asked("GET", "users", application) in (401, 403), "the application is no administrator"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"[]", []),
        (b'[{"mem_alarm": false, "disk_free_alarm": false}]', []),
        (b'[{"mem_alarm": false}, {"mem_alarm": true}]', ["memory"]),
        (b'[{"mem_alarm": true, "disk_free_alarm": true}, 7, {}]', ["memory", "disk"]),
    ],
)
def test_alarms_of_any_node_are_read(body, found):
    with listening(code=200, body=body) as (url, _):
        assert read_alarms(url, ADDRESS) == found


@pytest.mark.parametrize(("code", "body"), [(401, b"{}"), (200, b"{}"), (200, b"no JSON")])
def test_a_user_who_may_not_read_alarms_sees_none(code, body):
    with listening(code=code, body=body) as (url, _):
        with pytest.raises(ManagementSilentError):
            read_alarms(url, ADDRESS)
        assert DepthReader("amqp://u:p@rabbit.example/", url).alarms() == []


def test_a_memory_alarm_is_seen(rabbitmq):
    broker = rabbitmq()
    reader = DepthReader(broker.url, broker.management_url)
    assert reader.alarms() == []
    broker.control("set_vm_memory_high_watermark", "absolute", "1MB")
    wait_until(lambda: reader.alarms() == ["memory"], 60, "the alarm")
    broker.control("set_vm_memory_high_watermark", "0.4")
    wait_until(lambda: reader.alarms() == [], 60, "its end")

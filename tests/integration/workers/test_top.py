"""``tiercel top`` in a pipe and at a terminal."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from prometheus_client import generate_latest
from rich.console import Console, Group
from rich.text import Text
from typer.testing import CliRunner

from tests.support.inboxes import parcel, put
from tests.support.marks import marks_of
from tests.support.ran import ran
from tests.support.waiting import wait_until
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
from tiercel.acker.effects import perform_in_turn
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.metrics.contract import ErrorReport, Window
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.scripts import RedisServers
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import Writes
from tiercel.workers.cli.app import app
from tiercel.workers.control.presence import Holder, Lease
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.control.registry import Registry, known_topologies
from tiercel.workers.monitoring import screen
from tiercel.workers.monitoring.exposition import TiercelCollector
from tiercel.workers.monitoring.screen import view_of
from tiercel.workers.monitoring.watcher import Addresses, Watcher
from tiercel.workers.terminal import cell


@pytest.fixture
def name(amqp_url, redis_url):
    with ran(amqp_url, redis_url, "top", bolt="[split]") as name:
        metrics = RedisMetrics(redis_url, name)
        metrics.add("lines", 1, {"emitted": 12_345, "acked": 12_000, "failed": 45, "timeout": 5})
        metrics.add(
            "[split]",
            2,
            {"executed": 12_346, "execute_ns": 12_346_000_000, "steps": 4, "step_ns": 50_000_000},
        )
        now = datetime.now(UTC)
        metrics.report(
            [
                ErrorReport(
                    at=now,
                    component="[split]",
                    task=2,
                    message="[red]no markup: amqp://u:secret@h/",
                )
            ]
        )
        yield name


def test_in_a_pipe_it_shows_everything_once(name, redis_url, amqp_url):
    arguments = ["top", name, "--window", "all", "--redis", redis_url, "--amqp", amqp_url]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    [spout] = [line for line in lines if line[:1] == ["lines"]]
    assert spout[1:] == ["0/1", "12,345", "0", "0.000", "12,000", "45", "5", "0", "0"]
    bolt, tasks = [line for line in lines if line[:1] == ["[split]"]]
    assert bolt[4:6] == ["1.000", "12,346"]
    assert (tasks[1], tasks[-3:]) == ("0", ["12.5", "0", "2"]), "no process runs task 2"
    assert "[red]no markup: amqp://u:***@h/" in result.output
    assert "secret" not in result.output
    assert "not running" in result.output


def test_it_shows_what_waits_for_each_bolt_and_who_began_again(name, redis_url):
    with closing(RedisInboxes(RedisServers((redis_url,)), name)) as inboxes:
        inboxes.adopt("run", [2])
        attempts = [inboxes.draw("run", 2) for _ in range(3)]
        inboxes.open("run", 2, attempts[-1])
        assert inboxes.beat("run", {2: attempts[-1]}, {}, "").stale == []
        put(inboxes, 1, parcel(b"chunk", target=2, tuples=[70]))
        result = CliRunner().invoke(
            app, ["top", name, "--redis", redis_url], env={"COLUMNS": "100"}
        )
    assert result.exit_code == 0, result.output
    _, tasks = [
        line.split() for line in result.output.splitlines() if line.split()[:1] == ["[split]"]
    ]
    assert (tasks[1], tasks[-2:]) == ("70", ["12.5", "2"]), "two restarts, and a process runs it"


def test_at_a_terminal_it_goes_on_until_it_is_told_to_end(name, redis_url):
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "TIERCEL_REDIS": redis_url,
        "TERM": "xterm",
        "COLUMNS": "200",
        "LINES": "60",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tiercel", "top", name],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    seen = bytearray()

    def says(text):
        with suppress(OSError):  # the other end is closed
            while select.select([ours], [], [], 0)[0]:
                seen.extend(os.read(ours, 65536))
        return text in seen

    try:
        wait_until(lambda: says(b"12,345"))
        RedisMetrics(redis_url, name).add("lines", 1, {"emitted": 1})
        wait_until(lambda: says(b"12,346"))
        process.send_signal(signal.SIGINT)
        wait_until(lambda: says(b"") or process.poll() is not None)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_view_that_is_longer_than_the_screen_says_what_is_left_out(monkeypatch):
    """It is a topology with 60 bolts."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, height=10)
    monkeypatch.setattr(screen, "Console", lambda: console)
    stopped = threading.Event()

    def view(look, _window):
        stopped.set()
        return Group(*map(cell, look))

    monkeypatch.setattr(screen, "view_of", view)
    for number, said in ((10, "line 9"), (60, "and 51 more lines: tiercel top shop | less")):
        stopped.clear()
        found = [f"line {each}" for each in range(number)]
        monkeypatch.setattr(Watcher, "look", lambda *_, found=found: found)
        screen.run_top(
            Addresses(redis_urls=("redis://127.0.0.1:1",)), "shop", Window.ALL_TIME, stopped
        )
        lines = [each.strip() for each in Text.from_ansi(shown.getvalue()).plain.splitlines()]
        assert said in lines
        assert ("line 9" in lines) is (number == 10)
        shown.seek(0)
        shown.truncate()


@pytest.mark.parametrize("arguments", [["no-such-topology"], ["--window", "2h", "any"]])
def test_what_there_is_not_is_named(redis_url, arguments):
    with pytest.raises(Exception, match="there is no"):
        CliRunner().invoke(app, ["top", *arguments, "--redis", redis_url], catch_exceptions=False)


def test_the_first_look_is_at_a_topology_that_runs(redis):
    server = redis()
    with closing(Registry(server.url)) as registry:
        for name in ("a", "b", "c"):
            builder = TopologyBuilder(name)
            builder.set_spout("lines", QueueSpout("q"))
            registry.announce(builder.build())
    with (
        closing(Watcher(Addresses(redis_urls=(server.url,)))) as watcher,
        closing(Lease(RedisPresences(server.url, "b"))) as lease,
    ):
        assert watcher.look(None, Window.ALL_TIME).overview.name == "a", "none runs"
        assert lease.take(Holder(driver="driver"))
        watcher.look("b", Window.ALL_TIME)
        assert watcher.look(None, Window.ALL_TIME).overview.name == "b"
        # A monitor that has just started sees it at once.
        with closing(Watcher(Addresses(redis_urls=(server.url,)))) as other:
            assert other.look(None, Window.ALL_TIME).overview.name == "b"


def test_while_a_server_is_away_it_says_so_and_shows_what_was_last(redis):
    server = redis()
    builder = TopologyBuilder("away")
    builder.set_spout("lines", QueueSpout("q"))
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    with closing(Registry(server.url)) as registry:
        registry.announce(builder.build())
    addresses = Addresses(redis_urls=(server.url,), amqp_url="amqp://127.0.0.1:1")
    with (
        closing(RedisMetrics(server.url, "away")) as metrics,
        closing(Watcher(addresses)) as watcher,
    ):
        metrics.add("lines", 1, {"acked": 5})
        first = watcher.look(None, Window.ALL_TIME)
        assert (first.overview.spouts[0].counts["acked"], first.problems.redis) == (5, None)
        assert "nothing listens" in first.problems.rabbitmq
        server.stop()
        away = watcher.look(None, Window.ALL_TIME)
        assert away.overview.spouts[0].counts["acked"] == 5
        assert "Redis does not answer" in away.problems.redis
        assert view_of(away, Window.ALL_TIME)
        server.start()
        metrics.add("lines", 1, {"acked": 1})
        wait_until(
            lambda: (
                (look := watcher.look("away", Window.ALL_TIME)).problems.redis is None
                and look.overview is not None
            )
        )


def test_a_full_redis_is_named_with_what_to_do(redis):
    server = redis()
    builder = TopologyBuilder("full")
    builder.set_spout("lines", QueueSpout("q"))
    with closing(Registry(server.url)) as registry:
        registry.announce(builder.build())
    place = urlsplit(server.url).netloc.rpartition("@")[2]
    said = f"Redis is full ({place}): raise its maxmemory or free memory"
    top = ["top", "full", "--redis", server.url]
    with closing(connect(server.url)) as client:
        client.config_set("maxmemory", 1)
        assert said in " ".join(CliRunner().invoke(app, top).output.split())
        client.config_set("maxmemory", 0)
    assert "Redis is full" not in CliRunner().invoke(app, top).output


def test_what_a_bolt_remembers_is_counted_in_top_and_metrics(name, redis_url, amqp_url):
    spec = known_topologies(redis_url)[name].ledger_spec((redis_url,))
    with closing(RedisStateStore(spec, run_number=1)) as store:
        turn = store.begin("[split]", 0, 1).perform()
        perform_in_turn(turn.writing(Writes(marks=marks_of(*map(str, range(1_234)))), "d"))
    arguments = ["top", name, "--redis", redis_url, "--amqp", amqp_url]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "remembered" in result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["[split]", "0", "0", "0", "0", "1,234"] in lines
    with closing(Watcher(Addresses(redis_urls=(redis_url,)))) as watcher:
        metrics = generate_latest(TiercelCollector(watcher)).decode()
    assert f'tiercel_once_marks{{component="[split]",topology="{name}"}} 1234.0' in metrics

"""``tiercel status``: its text, JSON and exit code agree with ``top``, metrics and the monitor's
``/health``, on real servers with faults.
"""

import json
import os
import socket
import time
import urllib.error
import urllib.request
from contextlib import closing
from datetime import timedelta

import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

from tests.support.broker import put, unique
from tests.support.monitors import monitor
from tests.support.presences import renewed
from tests.support.proxy import Proxy
from tests.support.ran import ran
from tests.support.staged import Part, Play, staged
from tests.support.waiting import wait_until
from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder
from tiercel.acker.metrics.contract import Window
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.queues.broker import depths
from tiercel.workers.cli.app import app, one_line_errors
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Holder, Lease, Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry
from tiercel.workers.monitoring import watcher as watcher_module
from tiercel.workers.monitoring.exposition import TiercelCollector
from tiercel.workers.monitoring.watcher import Addresses, Watcher


def status(*arguments):
    """Return the exit code and the output."""
    with one_line_errors():
        result = CliRunner().invoke(app, ["status", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


def found(*arguments):
    """Return the exit code and the JSON about one topology."""
    code, output = status("--json", *arguments)
    [line] = [line for line in output.splitlines() if line.startswith("{")]
    return code, json.loads(line)


def kinds(said):
    return [finding["kind"] for finding in said["findings"]]


@pytest.fixture
def name(amqp_url, redis_url):
    with ran(amqp_url, redis_url, "status") as name:
        yield name


@pytest.fixture
def alone(redis):
    """A Redis for this test alone, which knows the topology "alone"."""
    server = redis()
    builder = TopologyBuilder("alone")
    builder.set_spout("lines", QueueSpout("alone-lines"))
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    with closing(Registry(server.url)) as registry:
        registry.announce(builder.build())
    return server


def test_one_that_should_run_and_does_not_is_in_trouble_until_it_is_killed(name, redis_url):
    code, said = found(name, "--redis", redis_url)
    assert (code, said["health"], said["ordered"], said["running"]) == (
        2,
        "in_trouble",
        "active",
        False,
    )
    assert kinds(said) == ["nothing_runs"]
    assert said["findings"][0]["level"] == "in_trouble"
    assert said["findings"][0]["since"] is None, "a command does not know since when"
    code, output = status(name, "--redis", redis_url)
    assert code == 2
    assert f"{name}: in trouble (ordered: active)\n{name}: in_trouble nothing_runs: " in output

    assert CliRunner().invoke(app, ["kill", name, "--redis", redis_url]).exit_code == 0
    code, said = found(name, "--redis", redis_url)
    assert (code, said["health"], said["ordered"]) == (0, "resting", "killed")
    with closing(Lease(RedisPresences(redis_url, name))) as lease:
        assert lease.take(Holder(driver="driver"))
        assert lease.draw("driver") is not None
        lease.leave("driver")
    code, said = found(name, "--redis", redis_url)
    assert (code, kinds(said)) == (2, ["nothing_runs"]), "it was started again, and then died"


def test_an_order_replaces_a_kill(name, redis_url):
    with closing(RedisControl(redis_url, name)) as control:
        control.note_kill()
        assert control.was_killed()
        control.order(State.DEACTIVATED)
        assert not control.was_killed()
    code, said = found(name, "--redis", redis_url)
    assert (code, said["health"], said["ordered"]) == (0, "resting", "deactivated")


def test_a_topology_that_is_strained_is_one(name, redis_url, amqp_url):
    with (
        closing(Lease(RedisPresences(redis_url, name))) as lease,
        closing(SpoutSeats(RedisPresences(redis_url, name))) as seats,
        closing(RedisMetrics(redis_url, name)) as metrics,
        closing(RedisControl(redis_url, name)) as control,
    ):
        control.order(State.DEACTIVATED)
        metrics.add("lines", 1, {"acked": 10, "timeout": 2})
        put(amqp_url, f"{name}.dead", b"bad")
        servers = [name, "--redis", redis_url, "--amqp", amqp_url]
        with renewed(
            lambda: lease.take(Holder(driver="driver")),
            lambda: seats.report("worker", 1, Presence(active=True, pending=0)),
        ):
            code, said = found(*servers)
        # No process runs the bolt, since this test starts none.
        left = [each for each in said["findings"] if each["kind"] != "task_without_process"]
        assert [(each["kind"], each["level"]) for each in left] == [
            ("timeouts", "strained"),
            ("dead_letters", "strained"),
        ]
        assert [each["queue"] for each in left] == [None, name]
        assert code == 2


@pytest.mark.parametrize(
    ("config", "bolt", "is_overdue"),
    [
        ({}, {}, True),
        ({}, {"execute_timeout_secs": 60}, False),
        ({"enable_message_timeouts": False}, {}, False),
    ],
    ids=["plain", "calls that may take longer", "no timeouts"],
)
def test_a_message_is_overdue_when_it_is_in_flight_for_longer_than_it_may_be(
    config, bolt, is_overdue, name, redis_url
):
    builder = TopologyBuilder(name, Config(**config))
    builder.set_spout("lines", QueueSpout(name))
    builder.set_bolt("sink", BasicBolt(), config=bolt).shuffle_grouping("lines")
    with (
        closing(Registry(redis_url)) as registry,
        closing(SpoutSeats(RedisPresences(redis_url, name))) as seats,
    ):
        registry.announce(builder.build())
        presence = Presence(active=True, pending=1, oldest_s=40.0)
        with renewed(lambda: seats.report("worker", 1, presence)):
            _, said = found(name, "--redis", redis_url)
    assert ("overdue" in kinds(said)) == is_overdue


def test_windows_that_stand_still_are_in_trouble_everywhere(redis_url, amqp_url):
    name = unique("standing")
    sums = Part(source="orders", tasks=1, held=40)
    play = Play(name=name, parts={"sums": sums}, silent_s=60)
    with (
        staged(redis_url, play),
        closing(Watcher(Addresses(redis_urls=(redis_url,), amqp_url=amqp_url))) as watcher,
    ):
        code, said = found(name, "--redis", redis_url)
        metrics = generate_latest(TiercelCollector(watcher)).decode()
    assert (code, said["health"]) == (2, "in_trouble")
    [finding] = [each for each in said["findings"] if each["kind"] == "windows_stand"]
    assert (finding["component"], finding["level"]) == ("sums", "in_trouble")
    assert finding["reason"].startswith("holds 40 tuples in windows that stand still, as orders ")
    assert finding["since"] is not None
    mine = [line for line in metrics.splitlines() if f'topology="{name}"' in line]
    [silent] = [line for line in mine if line.startswith("tiercel_spout_silent_seconds{")]
    assert 50 < float(silent.split()[-1]) < 600
    [standing] = [line for line in mine if 'kind="windows_stand"' in line]
    assert standing.endswith(" 1.0")


def test_a_server_that_is_away_or_full_is_named_everywhere(alone):
    nobody = "amqp://127.0.0.1:1"
    code, said = found("alone", "--redis", alone.url, "--amqp", nobody)
    assert (code, kinds(said)) == (2, ["rabbitmq_away", "nothing_runs"])
    with closing(connect(alone.url)) as client:
        client.config_set("maxmemory", 1)
        code, said = found("alone", "--redis", alone.url)
        client.config_set("maxmemory", 0)
    assert (code, kinds(said)) == (2, ["redis_full", "nothing_runs"])
    with closing(Watcher(Addresses(redis_urls=(alone.url,), amqp_url=nobody))) as watcher:
        collector = TiercelCollector(watcher)

        def exposed():
            lines = generate_latest(collector).decode().splitlines()
            return {name: value for name, _, value in (line.rpartition(" ") for line in lines)}

        def health(kind):
            return f'tiercel_health{{kind="{kind}",level="in_trouble",topology="alone"}}'

        assert exposed()[health("nothing_runs")] == "1.0"
        assert exposed()[health("redis_away")] == "0.0"
        alone.stop()
        away = exposed()
        assert (away[health("redis_away")], away[health("rabbitmq_away")]) == ("1.0", "1.0")
        assert health("nothing_runs") not in away, "not known while Redis is away"
        assert away['tiercel_up{server="redis"}'] == "0.0"
        assert away['tiercel_up{server="rabbitmq"}'] == "0.0"
    with pytest.raises(SystemExit, match="2"):
        status("alone", "--redis", alone.url)


def announce(redis_url, names):
    with closing(Registry(redis_url)) as registry:
        for each in names:
            builder = TopologyBuilder(each)
            builder.set_spout("lines", QueueSpout(f"{each}-silent"))
            registry.announce(builder.build())


def test_a_scrape_tells_in_time_that_a_server_is_silent(alone, amqp_url, monkeypatch):
    """Prometheus waits ten seconds: to it, a monitor that took longer would be gone."""
    announce(alone.url, "abcdefgh")
    monkeypatch.setattr(watcher_module, "_PATIENCE", timedelta(seconds=0.5))
    with (
        socket.create_server(("127.0.0.1", 0)) as silence,
        Proxy(amqp_url) as proxy,
        closing(Watcher(Addresses(redis_urls=(alone.url,), amqp_url=proxy.url))) as watcher,
    ):
        collector = TiercelCollector(watcher)

        def away():
            """Scrape, and return the servers that are away."""
            began = time.monotonic()
            lines = generate_latest(collector).decode().splitlines()
            assert time.monotonic() - began < 10
            servers = {"redis", "rabbitmq"}
            return {each for each in servers if f'tiercel_up{{server="{each}"}} 0.0' in lines}

        wait_until(lambda: away() == set())
        monkeypatch.setattr(depths, "_PATIENCE_S", 0.5)
        proxy.retarget(f"tcp://127.0.0.1:{silence.getsockname()[1]}", cut=False)
        proxy.mute()
        assert away() == {"rabbitmq"}, "on the old connection"
        assert away() == {"rabbitmq"}, "on a new one"
        alone.pause()
        assert away() == {"redis", "rabbitmq"}
        alone.resume()
        monkeypatch.setattr(depths, "_PATIENCE_S", 10.0)
        proxy.retarget(amqp_url)
        wait_until(lambda: away() == set())


def test_readings_of_many_topologies_wait_once_for_a_silent_redis(alone, monkeypatch):
    """The monitor reads one after the other: the last page would say nothing for minutes."""
    announce(alone.url, "abcdefgh")
    monkeypatch.setattr(watcher_module, "_PATIENCE", timedelta(seconds=0.5))
    with closing(Watcher(Addresses(redis_urls=(alone.url,)))) as watcher:
        looks = {each: watcher.look(each, Window.TEN_MINUTES) for each in "abcdefgh"}
        assert {each.problems.redis for each in looks.values()} == {None}
        alone.pause()
        began = time.monotonic()
        looks = {each: watcher.look(each, Window.TEN_MINUTES) for each in "abcdefgh"}
        took_s = time.monotonic() - began
        assert all("does not answer" in look.problems.redis for look in looks.values())
        assert all(look.overview is not None for look in looks.values()), "the last figures"
        assert took_s < 6, "one look takes 1.5 s"
        alone.resume()
        wait_until(lambda: watcher.look("h", Window.TEN_MINUTES).problems.redis is None)


def test_what_there_is_not_is_named(alone):
    with pytest.raises(SystemExit, match="2"):
        status("alon", "--redis", alone.url)


def answer(url):
    try:
        with urllib.request.urlopen(f"{url}health", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_monitor_is_ready_only_while_its_servers_answer(alone, amqp_url, tmp_path):
    ready, away = (200, "serving"), (503, "not ready: Redis does not answer")
    with monitor(tmp_path, amqp_url, alone.url) as url:
        wait_until(lambda: answer(url) == ready, 30, "the first reading")
        alone.stop()
        wait_until(lambda: answer(url) == away, 30, "it to notice")
        alone.start()
        wait_until(lambda: answer(url) == ready, 30, "it to notice again")


def test_a_monitor_whose_rabbitmq_is_away_is_not_ready(alone, tmp_path):
    with monitor(tmp_path, "amqp://127.0.0.1:1", alone.url) as url:
        wait_until(
            lambda: answer(url) == (503, "not ready: RabbitMQ does not answer"),
            30,
            "the first reading",
        )
    assert "Traceback" not in (tmp_path / "monitor.log").read_text()


def test_top_says_the_same(alone):
    environment = {"COLUMNS": "200", **os.environ}
    result = CliRunner().invoke(app, ["top", "alone", "--redis", alone.url], env=environment)
    assert "in trouble" in result.output.splitlines()[0]
    assert "nothing runs: it is ordered to be active" in " ".join(result.output.split())

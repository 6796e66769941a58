"""``tiercel pause`` and ``resume``, and how status and metrics show a paused bolt."""

import json
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from tests.support.broker import unique
from tests.support.staged import Part, Play, staged
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
from tiercel.acker.layout import silent_key
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.spark.run import _paused
from tiercel.workers.cli.app import app
from tiercel.workers.control.presence import NEW, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.monitoring.exposition import TiercelCollector
from tiercel.workers.monitoring.watcher import Addresses, Watcher


@pytest.fixture
def play(redis_url):
    parts = {"split": Part(source="orders"), "count": Part(source="split", waiting=7)}
    with staged(redis_url, Play(name=unique("paused"), parts=parts)) as play:
        yield play


def test_a_bolt_is_paused_and_resumed(tiercel, play, redis_url):
    name = play.name
    code, said = tiercel("pause", name, "--bolt", "count")
    assert code == 0
    assert said.startswith(f"count of {name} is paused within two seconds: its tasks finish")
    with closing(RedisControl(redis_url, name)) as control:
        assert control.paused() == {"count"}
        assert tiercel("resume", name, "--bolt", "count") == (
            0,
            f"count of {name} goes on within two seconds\n",
        )
        assert control.paused() == frozenset()
    assert tiercel("resume", name, "--bolt", "count") == (0, f"count of {name} is not paused\n")


def test_status_and_metrics_say_that_a_bolt_is_paused_and_nothing_else(tiercel, play, redis_url):
    assert tiercel("pause", play.name, "--bolt", "count")[0] == 0
    code, said = tiercel("status", play.name, "--json")
    found = json.loads(said)
    assert [each["kind"] for each in found["findings"]] == ["bolt_paused"], "it is not behind"
    assert "7 tuples wait for it" in found["findings"][0]["reason"]
    assert f"tiercel resume {play.name} --bolt count" in found["findings"][0]["reason"]
    assert code == 1
    with closing(Watcher(Addresses(redis_urls=(redis_url,)))) as watcher:
        registry = CollectorRegistry()
        registry.register(TiercelCollector(watcher))
        lines = generate_latest(registry).decode().splitlines()
    mine = [line for line in lines if play.name in line]
    assert f'tiercel_bolt_paused{{bolt="count",topology="{play.name}"}} 1.0' in mine
    assert f'tiercel_bolt_paused{{bolt="split",topology="{play.name}"}} 0.0' in mine
    code, said = tiercel("top", play.name)
    assert code == 0
    assert "is paused by order" in " ".join(said.split())


@pytest.mark.parametrize(
    ("bolt", "says"),
    [
        ("cuont", "has no bolt 'cuont'; its bolts are split, count; did you mean 'count'?"),
        ("orders", "'orders' is a spout of"),
    ],
)
def test_what_is_no_bolt_cannot_be_paused(play, redis_url, bolt, says):
    arguments = ["pause", play.name, "--bolt", bolt, "--redis", redis_url]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code
    assert says in str(result.exception)


def test_spouts_that_are_silent_or_without_a_worker_send_nothing(redis_url):
    builder = TopologyBuilder(unique("silent"))
    builder.set_spout("events", QueueSpout("q", fields="n long"))
    builder.set_spout("others", QueueSpout("p", fields="n long"))
    builder.set_bolt("work", BasicBolt()).shuffle_grouping("events").shuffle_grouping("others")
    topology = builder.build()
    with (
        closing(RedisControl(redis_url, topology.name)) as control,
        closing(SpoutSeats(RedisPresences(redis_url, topology.name))) as seats,
        connect(redis_url) as client,
    ):
        assert _paused(client, topology) == {"events", "others"}, "no worker has a seat"
        for task in (*topology.task_ids("events"), *topology.task_ids("others")):
            seats.report("worker", task, NEW)
        assert _paused(client, topology) == frozenset()
        control.note_silent("events")
        control.pause("work")
        assert _paused(client, topology) == {"events", "work"}
        assert 3_000 < client.pttl(silent_key(topology.name, "events")) <= 5_000


def test_a_spout_that_stays_silent_has_been_so_since_its_first_note(redis_url):
    name = unique("silent")
    with closing(RedisControl(redis_url, name)) as control, connect(redis_url) as client:
        assert control.silent_since(["events", "others"]) == {}
        control.note_silent("events")
        [since] = control.silent_since(["events", "others"]).values()
        assert timedelta(0) <= datetime.now(UTC) - since < timedelta(seconds=30)
        time.sleep(0.01)
        client.pexpire(silent_key(name, "events"), 2_000)
        control.note_silent("events")
        assert control.silent_since(["events", "others"]) == {"events": since}
        assert client.pttl(silent_key(name, "events")) > 3_000
        client.set(silent_key(name, "others"), "")
        assert control.silent_since(["others"]) == {}, "a worker of an older version"
        assert control.silent_since([]) == {}

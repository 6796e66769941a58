"""A note, order, presence or counter of a newer tiercel or a stranger hides no other topology from
monitors.
"""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from datetime import UTC, datetime

import pytest
from prometheus_client import generate_latest

from tiercel.acker.layout import topology_prefix
from tiercel.acker.metrics.contract import ErrorReport, Window
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.examples.word_count import topology as word_count
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import NEW, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry, topology_named
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.exposition import TiercelCollector
from tiercel.workers.monitoring.watcher import Addresses, Watcher


@pytest.fixture
def name():
    return f"unreadable-{uuid.uuid4().hex}"


GRAPH = {
    "spouts": [{"name": "s", "tasks": [1], "queue": None}],
    "bolts": [{"name": "b", "tasks": [2], "queue": None}],
    "edges": [{"source": "s", "stream": "default", "target": "b", "grouping": "shuffle"}],
    "shards": 1,
}


def note(tasks: object = 1, timeout: object = 30.0, **graph: object) -> bytes:
    return json.dumps([tasks, timeout, {**GRAPH, **graph}]).encode()


def edge(**changes: object) -> list[dict[str, object]]:
    return [{**GRAPH["edges"][0], **changes}]


NOTES = {
    "no JSON": b"\xff\xfe",
    "another shape": b"[1, 2]",
    "a word": b'"word"',
    "an object": b"{}",
    "a null": b"[1, 30, null]",
    "a new member of an edge": note(edges=edge(new=1)),
    "a new member of the graph": note(new=1),
    "half a surrogate pair": note(spouts=[{"name": "s\ud800", "tasks": [1], "queue": "q"}]),
    "half a surrogate pair in a queue": note(
        spouts=[{"name": "s", "tasks": [1], "queue": "\udfff"}]
    ),
    "a timeout that is no number": b"[1, NaN, " + json.dumps(GRAPH).encode() + b"]",
    "a timeout without end": b"[1, Infinity, " + json.dumps(GRAPH).encode() + b"]",
    "a timeout of aeons": note(timeout=1e300),
    "a timeout before the start": note(timeout=-1),
    "a timeout that is a word": note(timeout="soon"),
    "a hundred million spout tasks": note(tasks=10**8),
    "spout tasks that do not count from 1": note(
        spouts=[{"name": "s", "tasks": [2], "queue": None}]
    ),
    "a task that is a word": note(bolts=[{"name": "b", "tasks": ["x"], "queue": None}]),
    "a thousand million shards": note(shards=10**9),
    "an older version's members": note(relay_lanes=1),
    "shards below none": note(shards=-1),
    "an edge to nowhere": note(edges=edge(source="x", target="y")),
    "one name twice": note(bolts=[*GRAPH["bolts"], *GRAPH["bolts"]]),
    "brackets": b"[" * 100_000,
}


@pytest.fixture
def watched(redis):
    return Addresses(redis_urls=(redis().url,), amqp_url=None, management_url=None)


@pytest.fixture
def own_client(watched):
    with closing(connect(watched.redis_urls[0])) as made:
        yield made


def exposition(addresses: Addresses) -> str:
    watcher = Watcher(addresses)
    with closing(watcher):
        return generate_latest(TiercelCollector(watcher)).decode()


@pytest.fixture
def announced(watched):
    with closing(Registry(watched.redis_urls[0])) as registry:
        registry.announce(word_count())
        yield registry


def test_a_note_that_cannot_be_read_hides_no_other_topology(watched, own_client, announced, lines):
    for content in NOTES.values():
        own_client.hset("tiercel:topologies", "strange", content)
        assert list(announced.topologies()) == ["word-count"]
        # A monitor that looks again and again reports the same entry only once.
        assert list(announced.topologies()) == ["word-count"]
    assert len(lines()) == len(NOTES)
    assert all("the note of topology 'strange'" in line for line in lines())
    own_client.hset("tiercel:topologies", "strange", note())
    assert list(announced.topologies()) == ["strange", "word-count"]
    own_client.hset("tiercel:topologies", "strange", note(edges=edge() + edge(source="b")))
    assert list(announced.topologies()) == ["strange", "word-count"], "a cycle is nothing strange"


@pytest.mark.parametrize("content", NOTES.values(), ids=NOTES)
def test_metrics_are_served_beside_a_note_that_cannot_be_read(
    watched, own_client, announced, content
):
    own_client.hset("tiercel:topologies", "strange", content)
    text = exposition(watched)
    assert 'topology="word-count"' in text
    assert "strange" not in text


@pytest.mark.parametrize("strange", [b"\xff", b"", b"a\x1b[2J", b"a\nb", "a\u202eb".encode()])
def test_a_topology_whose_name_is_no_name_is_passed_over(own_client, announced, lines, strange):
    own_client.hset("tiercel:topologies", strange, note())
    assert list(announced.topologies()) == ["word-count"]
    assert len(lines()) == 1
    assert "\x1b" not in lines()[0]


def test_a_command_on_another_topology_works_and_one_on_this_says_why(
    watched, own_client, announced, lines
):
    own_client.hset("tiercel:topologies", "strange", NOTES["a new member of the graph"])
    assert topology_named(watched.redis_urls[0], "word-count").spout_tasks == 1
    with pytest.raises(UsageError, match="strange"):
        topology_named(watched.redis_urls[0], "strange")
    assert "other members than this version of tiercel writes (new)" in lines()[0]


def test_an_order_of_a_newer_version_is_no_order(client, redis_url, name, lines):
    with closing(RedisControl(redis_url, name)) as control:
        client.set(topology_prefix(name) + "control", b"hibernate\xff")
        assert control.state() is None
        assert control.ask(State.ACTIVE) is None
    assert len(lines()) == 1
    assert "skipping the order tiercel:{" in lines()[0]


@pytest.mark.parametrize(
    "said", [b"\xff", b"7", b"[1, 2]", b'[true, "x", 0]', b"[true, 1, NaN]", b"[" * 100_000]
)
def test_a_presence_that_cannot_be_read_hides_no_other(client, redis_url, name, lines, said):
    with closing(SpoutSeats(RedisPresences(redis_url, name))) as spouts:
        spouts.report("worker", 2, NEW)
        client.set(topology_prefix(name) + "present:spout-task-1", b"worker " + said)
        for _ in range(2):
            assert list(spouts.present(range(1, 3))) == [2]
    assert len(lines()) == 1
    assert "spout task 1" in lines()[0]


def test_counters_that_cannot_be_read_hide_no_other_topology(watched, own_client, announced, lines):
    own_client.hset("tiercel:topologies", "strange", note())
    key = topology_prefix("strange") + "metrics"
    for spoil in (
        lambda: own_client.hset(key, "no JSON", "7"),
        lambda: own_client.hset(key, '["b", 2, "executed"]', "no number"),
        lambda: own_client.set(key, "a string"),
        lambda: own_client.lpush(topology_prefix("strange") + "errors", "no JSON"),
    ):
        own_client.delete(key)
        spoil()
        text = exposition(watched)
        assert 'tiercel_up{server="redis"} 1.0' in text
        assert 'topology="word-count"' in text
        figures = [line for line in text.splitlines() if "strange" in line]
        assert all(line.startswith("tiercel_health{") for line in figures)
        unreadable = 'tiercel_health{kind="unreadable",level="in_trouble",topology="strange"} 1.0'
        assert unreadable in figures
    assert len(lines()) == 4
    assert all("cannot read the data of strange in Redis" in line for line in lines())


def test_tracebacks_that_cannot_be_read_hide_nothing_else_of_their_topology(watched, own_client):
    with closing(Registry(watched.redis_urls[0])) as registry:
        registry.announce(word_count())
    with closing(RedisMetrics(watched.redis_urls[0], "word-count")) as metrics:
        now = datetime.now(UTC)
        metrics.report([ErrorReport(at=now, component="split", task=2, message="boom")])
        kept, last = metrics._traces_keys
        own_client.hset(kept, "no name", "no JSON")
        own_client.zadd(last, {"no name": 1})
    with closing(Watcher(watched)) as watcher:
        look = watcher.look("word-count", Window.TEN_MINUTES)
    assert look.problems.lines == []
    [fault] = look.overview.faults
    assert (fault.component, fault.reason, fault.count) == ("split", "boom", 1)


def test_a_topology_that_was_forgotten_comes_back_without_its_old_figures(
    watched, own_client, announced
):
    name = word_count().name
    with closing(Watcher(watched)) as watcher:
        assert watcher.look(name, Window.TEN_MINUTES).overview is not None
        announced.forget(name)
        assert watcher.look(name, Window.TEN_MINUTES).overview is None
        announced.announce(word_count())
        own_client.lpush(topology_prefix(name) + "errors", "no JSON")
        look = watcher.look(name, Window.TEN_MINUTES)
        assert (look.problems.unreadable, look.overview) == (True, None)

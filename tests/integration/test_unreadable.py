"""What a newer tiercel or a stranger put into Redis is passed over with one line that names it, and stops nothing else."""

from __future__ import annotations

import json
import struct
import uuid
from contextlib import closing
from datetime import timedelta

import pyarrow as pa
import pytest
from prometheus_client import generate_latest

from acker import LedgerSpec, MemoryLedger, Token, open_ledger
from acker.layout import topology_prefix
from acker.redis_client import connect
from examples.word_count import topology as word_count
from queues.inbox.memory import MemoryInboxes
from queues.inbox.records import Appended
from spark_jobs import BasicBolt, TopologyBuilder
from spark_jobs.spark.stores import open_inboxes
from spark_jobs.suspects.memory import MemoryCaseBook
from spark_jobs.suspects.redis_book import RedisCaseBook
from tests.chunks import chunk
from tests.inboxes import covering, opened, parcel, put, take
from tests.pump import Source
from workers.control import Presence, State
from workers.driver.entering import enter
from workers.errors import UsageError
from workers.monitoring.exposition import registry_of
from workers.monitoring.watcher import Servers, Watcher
from workers.redis_control import RedisControl
from workers.registry import Registry, topology_named

IDS = pa.array([[1]], pa.list_(pa.uint64()))
SIGNATURE = b"\0" * 32


@pytest.fixture
def client(redis_url):
    with closing(connect(redis_url)) as made:
        yield made


@pytest.fixture
def name():
    return f"unreadable-{uuid.uuid4().hex}"


@pytest.fixture
def spec(name, redis_url):
    return LedgerSpec(topology=name, urls=(redis_url,), shards=1, owners=1, message_timeout=timedelta(seconds=30))


@pytest.fixture
def ledger(spec):
    with closing(open_ledger(spec)) as made:
        yield made


@pytest.fixture
def inboxes(spec):
    """Those of the first run; the bolt tasks are 2 and 3."""
    with closing(open_inboxes(spec)) as made:
        made.adopt("1", [2, 3])
        yield made


def entered(run, name, inboxes, ledger, book=None):
    builder = TopologyBuilder(name)
    builder.set_spout("source", Source())
    builder.set_bolt("bolt", BasicBolt(), parallelism=2).shuffle_grouping("source")
    return enter(run, builder.build(), inboxes, ledger, book or MemoryCaseBook())


@pytest.fixture
def lines(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def frames(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def ipc(*columns, head: bytes = b"1\n2\ns\nd") -> bytes:
    names = ["a", "__roots", "__edges"][: len(columns)]
    batch = pa.RecordBatch.from_arrays(list(columns), names=names).replace_schema_metadata({b"tiercel": head})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


ONE = pa.array([1])
SNAPSHOTS = {
    "garbage": b"\xff" * 50,
    "nothing": b"",
    "two frames": frames(b"", b""),
    "a length beyond the end": frames(b"", b"", b"")[:-1],
    "a chunk of garbage": frames(b"", b"", b"", b"\xff" * 50),
    "a chunk cut off": frames(b"", b"", b"", ipc(pa.array(["x" * 100]), IDS, IDS)[:-120]),
    "one column": frames(b"", b"", b"", ipc(ONE)),
    "no lists": frames(b"", b"", b"", ipc(ONE, ONE, ONE)),
    "trees that are texts": frames(b"", b"", b"", ipc(ONE, *[pa.array([["x"]])] * 2)),
    "trees that are missing": frames(b"", b"", b"", ipc(ONE, pa.array([[None]], pa.list_(pa.uint64())), IDS)),
    "negative trees": frames(b"", b"", b"", ipc(ONE, *[pa.array([[-1]], pa.list_(pa.int64()))] * 2)),
    "a route of words": frames(b"", b"", b"", ipc(ONE, IDS, IDS, head=b"x\ny\nz\nw")),
    "a tuple that stands nowhere": frames(b"", b"", b"", ipc(ONE, IDS, IDS)),
    "a place that is none": frames(b"", struct.pack("<q", 7), b"\0" * 16, ipc(ONE, IDS, IDS)),
    "half a place": frames(b"", b"\0" * 4, b"\0" * 8, ipc(ONE, IDS, IDS)),
}


@pytest.mark.parametrize("content", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_a_malformed_snapshot_stops_the_driver_at_no_start(name, inboxes, ledger, lines, content):
    good = frames(b"", struct.pack("<q", 0), b"\0" * 16, ipc(ONE, pa.array([[7]], pa.list_(pa.uint64())), IDS))
    for task, each in ((2, content), (3, good)):
        inbox = opened(inboxes, task, "1")
        assert put(inboxes, 1, parcel(b"x", target=task), run="1") == [Appended.DONE]
        assert inbox.seal(covering(1, take(inbox)), SIGNATURE + each).perform()
        assert inbox.finish(1).perform()
    ledger.register(1, [7], [1])
    assert entered("2", name, inboxes, ledger) == 1
    assert len(lines()) == 1
    assert "passing over the snapshot of task 2" in lines()[0]
    assert entered("3", name, inboxes, ledger) == 0
    assert len(lines()) == 1
    assert inboxes.snapshots("3") == []


def test_a_chunk_in_an_inbox_that_cannot_be_read_is_passed_over(name, inboxes, ledger, lines):
    assert put(inboxes, 1, parcel(chunk(7), b"\xff" * 50, chunk(8), target=2), run="1") == [Appended.DONE]
    ledger.register(1, [7, 8], [1, 1])
    assert entered("2", name, inboxes, ledger) == 2
    assert len(lines()) == 1
    assert "passing over 50 bytes in the inbox of task 2" in lines()[0]
    assert inboxes.figures([2])[2].tuples == 0


def test_an_entry_of_an_inbox_that_is_none_of_ours_is_passed_over(client, name, inboxes, ledger, lines):
    stream = f"tiercel:{{{name}:inbox:2}}:entries"
    client.xadd(stream, {"other": "field", "more": "of it"}, id="1-1")
    assert put(inboxes, 1, parcel(chunk(7), target=2), run="1") == [Appended.DONE]
    assert [entry.tuples for entry in take(opened(inboxes, 2, "1"))] == [0, 1]
    ledger.register(1, [7], [1])
    assert entered("2", name, inboxes, ledger) == 1
    assert len(lines()) == 1
    assert "passing over 5 bytes in the inbox of task 2" in lines()[0]
    assert client.xlen(stream) == 0


SUSPECT = {"component": "c", "task": 1, "seed": 1, "roots": [7], "deaths": 1}
CASES = {
    "garbage": b"\xff",
    "a number": b"7",
    "a word": b'["x"]',
    "brackets": b"[" * 100_000,
    "a new member": json.dumps([{**SUSPECT, "new": 1}]).encode(),
    "a member less": json.dumps([{"component": "c"}]).encode(),
    "a negative root": json.dumps([{**SUSPECT, "roots": [-1]}]).encode(),
    "a root that is a word": json.dumps([{**SUSPECT, "roots": ["x"]}]).encode(),
    "deaths that are a word": json.dumps([{**SUSPECT, "deaths": "x"}]).encode(),
}


@pytest.mark.parametrize("content", CASES.values(), ids=CASES)
def test_suspects_that_cannot_be_read_are_passed_over(client, redis_url, name, lines, content):
    key = topology_prefix(name) + "suspects"
    token = Token(run="r", task=1, step=1)
    ledger = MemoryLedger(LedgerSpec(topology=name, urls=(), shards=1, owners=1, message_timeout=None))
    ledger.register(1, [7], [1])
    guilty = json.dumps([{**SUSPECT, "deaths": 2}])
    client.hset(key, mapping={"r:1:1": content, "r:1:2": guilty, b"\xff": "[]"})
    with closing(RedisCaseBook(connect(redis_url), name)) as book:
        assert book.load(token).suspects == ()
        entered("2", name, MemoryInboxes(), ledger, book)
    assert ledger.pending() == 0
    assert len(lines()) == 2  # one for each look
    assert all("'r:1:1'" in line for line in lines())


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
    "half a surrogate pair in a queue": note(spouts=[{"name": "s", "tasks": [1], "queue": "\udfff"}]),
    "a timeout that is no number": b"[1, NaN, " + json.dumps(GRAPH).encode() + b"]",
    "a timeout without end": b"[1, Infinity, " + json.dumps(GRAPH).encode() + b"]",
    "a timeout of aeons": note(timeout=1e300),
    "a timeout before the start": note(timeout=-1),
    "a timeout that is a word": note(timeout="soon"),
    "a hundred million spout tasks": note(tasks=10**8),
    "spout tasks that do not count from 1": note(spouts=[{"name": "s", "tasks": [2], "queue": None}]),
    "a task that is a word": note(bolts=[{"name": "b", "tasks": ["x"], "queue": None}]),
    "a thousand million shards": note(shards=10**9),
    "shards below none": note(shards=-1),
    "an edge to nowhere": note(edges=edge(source="x", target="y")),
    "a circle": note(edges=edge(source="b")),
    "one name twice": note(bolts=[*GRAPH["bolts"], *GRAPH["bolts"]]),
    "brackets": b"[" * 100_000,
}


@pytest.fixture
def watched(redis):
    return Servers(redis_urls=(redis().url,), amqp_url=None, management_url=None)


@pytest.fixture
def own_client(watched):
    with closing(connect(watched.redis_urls[0])) as made:
        yield made


def exposition(servers: Servers) -> str:
    watcher = Watcher(servers)
    with closing(watcher):
        return generate_latest(registry_of(watcher)).decode()


@pytest.fixture
def announced(watched):
    with closing(Registry(watched.redis_urls[0])) as registry:
        registry.announce(word_count())
        yield registry


def test_a_note_that_cannot_be_read_hides_no_other_topology(watched, own_client, announced, lines):
    for content in NOTES.values():
        own_client.hset("tiercel:topologies", "strange", content)
        assert list(announced.topologies()) == ["word-count"]
        # The same one is not told of twice by one who looks again and again.
        assert list(announced.topologies()) == ["word-count"]
    assert len(lines()) == len(NOTES)
    assert all("the note of topology 'strange'" in line for line in lines())
    own_client.hset("tiercel:topologies", "strange", note())
    assert list(announced.topologies()) == ["strange", "word-count"]


@pytest.mark.parametrize("content", NOTES.values(), ids=NOTES)
def test_metrics_are_served_beside_a_note_that_cannot_be_read(watched, own_client, announced, content):
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


def test_a_command_on_another_topology_works_and_one_on_this_says_why(watched, own_client, announced, lines):
    own_client.hset("tiercel:topologies", "strange", NOTES["a new member of the graph"])
    assert topology_named(watched.redis_urls[0], "word-count").spout_tasks == 1
    with pytest.raises(UsageError, match="strange"):
        topology_named(watched.redis_urls[0], "strange")
    assert "other members than this version of tiercel writes (new)" in lines()[0]


def test_a_queue_whose_note_is_no_text_is_passed_over(own_client, announced, lines):
    before = announced.queues()
    own_client.hset("tiercel:queues", mapping={b"\xff": "t", b"q": b"\xff"})
    assert announced.queues() == before
    assert len(lines()) == 2


def test_an_order_of_a_newer_version_is_no_order(client, redis_url, name, lines):
    with closing(RedisControl(redis_url, name)) as control:
        client.set(topology_prefix(name) + "control", b"hibernate\xff")
        presence = Presence(active=True, pending=1)
        assert control.state() is None
        assert control.report(1, presence, State.ACTIVE) is None
        assert control.present(range(1, 2)) == {1: presence}
    assert len(lines()) == 1
    assert "passing over the order tiercel:{" in lines()[0]


@pytest.mark.parametrize("said", [b"\xff", b"7", b"[1, 2]", b'[true, "x", 0]', b"[true, 1, NaN]", b"[" * 100_000])
def test_a_presence_that_cannot_be_read_hides_no_other(client, redis_url, name, lines, said):
    with closing(RedisControl(redis_url, name)) as control:
        control.report(2, Presence(active=True, pending=1), State.ACTIVE)
        client.set(topology_prefix(name) + "control:1", said)
        for _ in range(2):
            assert list(control.present(range(1, 3))) == [2]
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
        assert "strange" not in text
    assert len(lines()) == 4
    assert all("cannot read what strange keeps in Redis" in line for line in lines())

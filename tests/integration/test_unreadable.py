"""What a newer tiercel or a stranger put into Redis is passed over with one line that names it, and stops nothing else."""

from __future__ import annotations

import json
import struct
import uuid
from contextlib import closing
from datetime import timedelta

import pyarrow as pa
import pytest

from acker import LedgerSpec, MemoryLedger, Token, open_ledger
from acker.layout import topology_prefix
from acker.redis_client import connect
from queues.relay import START, Entry
from spark_jobs.relays import relay_on
from spark_jobs.snapshots.redis_store import RedisSnapshots
from spark_jobs.suspects.redis_book import RedisCaseBook
from tests.chunks import chunk
from workers.driver import fail_guilty, release_held, release_leftovers

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
def ledger(name, redis_url):
    spec = LedgerSpec(topology=name, urls=(redis_url,), shards=1, owners=1, message_timeout=timedelta(seconds=30))
    with closing(open_ledger(spec)) as made:
        yield made


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
def test_a_malformed_snapshot_stops_the_driver_at_no_start(client, redis_url, name, ledger, lines, content):
    prefix = topology_prefix(name) + "snapshots:"
    good = frames(b"", struct.pack("<q", 0), b"\0" * 16, ipc(ONE, pa.array([[7]], pa.list_(pa.uint64())), IDS))
    for number, each in enumerate((content, good)):
        client.sadd(prefix + "runs", f"run-{number}")
        client.hset(f"{prefix}run-{number}:contents", "1:1", SIGNATURE + each)
    ledger.register(1, [7], [1])
    with closing(RedisSnapshots(connect(redis_url), name, "new")) as store:
        assert release_held(store, ledger) == 1
        assert len(lines()) == 1
        assert "'1:1 of run run-0'" in lines()[0]
        assert release_held(store, ledger) == 0
    assert len(lines()) == 1
    assert not client.keys(prefix + "*")


def test_names_of_snapshots_that_are_no_text_stop_nothing(client, redis_url, name, ledger, lines):
    prefix = topology_prefix(name) + "snapshots:"
    client.sadd(prefix + "runs", b"\xff\n\x1b")
    client.hset(prefix.encode() + b"\xff\n\x1b:contents", b"\xfe", b"x")
    client.hset(prefix + "new:newest", mapping={"1": "three -", "2": b"\xff", "3": "4 -"})
    with closing(RedisSnapshots(connect(redis_url), name, "new")) as store:
        assert store.find([1, 2, 3], 9) == {3: 4}
        assert release_held(store, ledger) == 0
    assert len(lines()) == 1
    assert "\\xfe of run \\xff" in lines()[0].replace("\\\\", "\\")
    assert not [key for key in client.keys(prefix + "*") if b"\xff" in key]


def test_a_chunk_in_the_relay_that_cannot_be_read_is_passed_over(client, redis_url, name, ledger, lines):
    with closing(relay_on(redis_url, name, 1)) as relay:
        relay.append([Entry(lane=0, payload=each) for each in (chunk(7), b"\xff" * 50, chunk(8))])
        ledger.register(1, [7, 8], [1, 1])
        assert release_leftovers(relay, ledger) == 2
    assert len(lines()) == 1
    assert "passing over 50 bytes" in lines()[0]


def test_an_entry_of_the_relay_that_is_none_of_ours_is_passed_over(client, redis_url, name, ledger, lines):
    with closing(relay_on(redis_url, name, 1)) as relay:
        client.xadd(topology_prefix(name) + "relay:0", {"other": "field"}, id="1-1")
        relay.append([Entry(lane=0, payload=chunk(7))])
        assert relay.read(0, START, relay.advance({0: START}, 0, timedelta(0))[0]) == [chunk(7)]
        ledger.register(1, [7], [1])
        assert release_leftovers(relay, ledger) == 1
        assert relay.length() == 0
        client.set(topology_prefix(name) + "relay:attendant", b"\xff")
        assert relay.attendant()
    assert all("passing over entry 1-1 of lane 0" in line for line in lines())
    assert len(lines()) == 2


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
        fail_guilty(book, ledger)
    assert ledger.pending() == 0
    assert len(lines()) == 2  # one for each look
    assert all("'r:1:1'" in line for line in lines())

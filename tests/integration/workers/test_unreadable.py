"""Redis entries of a newer tiercel or a stranger are skipped with one line that names them, and
block nothing else.
"""

from __future__ import annotations

import json
import struct
import uuid
from contextlib import closing
from datetime import timedelta

import pyarrow as pa
import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.chunks import chunk
from tests.support.inboxes import covering, opened, parcel, put, take
from tests.support.pump import Source
from tiercel import BasicBolt, TopologyBuilder
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.layout import LedgerSpec, topology_prefix
from tiercel.acker.ledger import Token
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook
from tiercel.workers.driver.process import enter

IDS = pa.array([[1]], pa.list_(pa.uint64()))
SIGNATURE = b"\0" * 32


@pytest.fixture
def name():
    return f"unreadable-{uuid.uuid4().hex}"


@pytest.fixture
def spec(name, redis_url):
    return LedgerSpec(
        topology=name, urls=(redis_url,), shards=1, owners=1, message_timeout=timedelta(seconds=30)
    )


@pytest.fixture
def ledger(spec):
    with closing(open_ledger(spec)) as made:
        yield made


@pytest.fixture
def inboxes(spec):
    """The inboxes of the first run; the bolt tasks are 2 and 3."""
    with closing(open_inboxes(spec)) as made:
        made.adopt("1", [2, 3])
        yield made


def entered(run, name, inboxes, ledger, book=None):
    builder = TopologyBuilder(name)
    builder.set_spout("source", Source())
    builder.set_bolt("bolt", BasicBolt(), parallelism=2).shuffle_grouping("source")
    return enter(run, builder.build(), inboxes, ledger, book or MemoryCaseBook())


def frames(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def snapshot(*chunks: bytes, places: bytes = b"", told: bytes = b"") -> bytes:
    """Build a snapshot with the places of its tuples, the facts about them, and no tuples held by
    threads.
    """
    return frames(b"", b"attributes", places, told, b"", *chunks)


def ipc(*columns, head: bytes = b"1\n2\ns\nd") -> bytes:
    names = ["a", "__roots", "__edges"][: len(columns)]
    batch = pa.RecordBatch.from_arrays(list(columns), names=names).replace_schema_metadata(
        {b"tiercel": head}
    )
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
    "a chunk of garbage": snapshot(b"\xff" * 50),
    "a chunk cut off": snapshot(ipc(pa.array(["x" * 100]), IDS, IDS)[:-120]),
    "one column": snapshot(ipc(ONE)),
    "no lists": snapshot(ipc(ONE, ONE, ONE)),
    "trees that are texts": snapshot(ipc(ONE, *[pa.array([["x"]])] * 2)),
    "trees that are missing": snapshot(ipc(ONE, pa.array([[None]], pa.list_(pa.uint64())), IDS)),
    "negative trees": snapshot(ipc(ONE, *[pa.array([[-1]], pa.list_(pa.int64()))] * 2)),
    "a route of words": snapshot(ipc(ONE, IDS, IDS, head=b"x\ny\nz\nw")),
    "a tuple that stands nowhere": snapshot(ipc(ONE, IDS, IDS)),
    "a place that is none": snapshot(
        ipc(ONE, IDS, IDS), places=struct.pack("<q", 7), told=b"\0" * 16
    ),
    "half a place": snapshot(ipc(ONE, IDS, IDS), places=b"\0" * 4, told=b"\0" * 8),
}


@pytest.mark.parametrize("content", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_a_malformed_snapshot_stops_the_driver_at_no_start(name, inboxes, ledger, lines, content):
    trees = pa.array([[7]], pa.list_(pa.uint64()))
    good = snapshot(ipc(ONE, trees, IDS), places=struct.pack("<q", 0), told=b"\0" * 16)
    for task, each in ((2, content), (3, good)):
        inbox = opened(inboxes, task, "1")
        assert put(inboxes, 1, parcel(b"x", target=task), run="1") == [Appended.DONE]
        assert inbox.seal(covering(1, take(inbox)), SIGNATURE + each).perform()
        assert inbox.finish(1).perform()
    ledger.register(1, [7], [1])
    assert entered("2", name, inboxes, ledger) == 1
    assert len(lines()) == 1
    assert "skipping the snapshot of task 2" in lines()[0]
    assert entered("3", name, inboxes, ledger) == 0
    assert len(lines()) == 1
    assert inboxes.snapshots("3") == []


def test_a_chunk_in_an_inbox_that_cannot_be_read_is_passed_over(name, inboxes, ledger, lines):
    assert put(inboxes, 1, parcel(chunk(7), b"\xff" * 50, chunk(8), target=2), run="1") == [
        Appended.DONE
    ]
    ledger.register(1, [7, 8], [1, 1])
    assert entered("2", name, inboxes, ledger) == 2
    assert len(lines()) == 1
    assert "skipping 50 bytes in the inbox of task 2" in lines()[0]
    assert inboxes.figures([2])[2].tuples == 0


def test_an_entry_of_an_inbox_that_is_none_of_ours_is_passed_over(
    client, name, inboxes, ledger, lines
):
    stream = f"tiercel:{{{name}:inbox:0}}:2:entries"
    client.xadd(stream, {"other": "field", "more": "of it"}, id="1-1")
    assert put(inboxes, 1, parcel(chunk(7), target=2), run="1") == [Appended.DONE]
    assert [entry.tuples for entry in take(opened(inboxes, 2, "1"))] == [0, 1]
    ledger.register(1, [7], [1])
    assert entered("2", name, inboxes, ledger) == 1
    assert len(lines()) == 1
    assert "skipping 5 bytes in the inbox of task 2" in lines()[0]
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
    ledger = MemoryLedger(
        LedgerSpec(topology=name, urls=(), shards=1, owners=1, message_timeout=None)
    )
    ledger.register(1, [7], [1])
    guilty = json.dumps([{**SUSPECT, "deaths": 2}])
    client.hset(key, mapping={"r:1:1": content, "r:1:2": guilty, b"\xff": "[]"})
    with closing(RedisCaseBook(connect(redis_url), name)) as book:
        assert book.load(token).suspects == ()
        entered("2", name, MemoryInboxes(), ledger, book)
    assert ledger.pending() == 0
    assert len(lines()) == 2  # one line per look
    assert all("'r:1:1'" in line for line in lines())

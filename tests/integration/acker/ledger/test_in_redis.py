"""The ledger on a real server: keys, expiry, encodings, memory, and the rules of a cluster."""

from __future__ import annotations

import subprocess
from datetime import timedelta

import numpy as np
import pytest
import redis.exceptions
from redis.crc import key_slot

from tests.support.ledgers import NOW, OTHER, ROOT, A, B, failure, said, token, updates
from tests.support.waiting import wait_until
from tiercel.acker.effects import perform_all
from tiercel.acker.ids import RootIds, mix_array
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Updates, total
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.pool import Pool
from tiercel.acker.redis.scripts import RedisServer
from tiercel.acker.redis_ledger import RedisLedger, ShardScripts, open_ledger
from tiercel.compose.server import free_port


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as made:
        yield made


@pytest.fixture
def open_one(make_spec):
    opened = []

    def make(**changed) -> RedisLedger:
        opened.append(open_ledger(make_spec(**changed)))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


def keys_of(client, ledger) -> dict[str, bytes]:
    """Return every key of a ledger by its part after the hash tag."""
    found = client.keys(f"tiercel:{{{ledger._spec.topology}:*")
    return {key.decode().partition("}:")[2]: key for key in found}


def fill(ledger, client):
    """Make one key of each kind and return them."""
    ledger.feed(1).close()
    ledger.register(1, [ROOT, OTHER, 3], [A, B, 0])
    ledger.apply(token(), updates({ROOT: A}))
    kinds = keys_of(client, ledger)
    assert {name.partition(":")[0] for name in kinds} == {
        "mark",
        "reader",
        "registered",
        "feed",
        "b",
        "tokens",
        "n",
    }
    return kinds


def test_every_key_expires_a_few_timeouts_later_but_the_steps_never_do(client, open_one):
    for name, key in fill(open_one(message_timeout=timedelta(seconds=30)), client).items():
        if name == "tokens":
            assert client.pttl(key) == -1
            continue
        left_s = client.pttl(key) / 1000
        assert 110 < left_s <= (3720 if _of_readers(name) else 120), name


def test_what_dead_spouts_leave_behind_is_gone_without_a_sweeper(client, open_one):
    ledger = open_one(message_timeout=timedelta(milliseconds=500))
    fill(ledger, client)
    wait_until(
        lambda: all(name == "tokens" or _of_readers(name) for name in keys_of(client, ledger))
    )


def _of_readers(name: str) -> bool:
    return name.partition(":")[0] in {"mark", "reader", "registered"}


def test_without_timeouts_entries_outcomes_and_marks_stay(client, open_one):
    for name, key in fill(open_one(message_timeout=None), client).items():
        assert client.pttl(key) == -1 or (name.startswith("n:") and client.pttl(key) > 3_000_000)


def test_resetting_a_timeout_keeps_the_entry_as_long(client, open_one):
    ledger = open_one()
    bucket = next(key for name, key in fill(ledger, client).items() if name.startswith("b:"))
    client.pexpire(bucket, 1000)
    ledger.reset_timeout([OTHER])
    assert client.pttl(bucket) > 110_000


def test_pending_roots_take_28_bytes_at_most_in_small_listpacks(redis, open_one):
    ledger = open_one(urls=(redis().url,))
    with connect(ledger._spec.urls[0]) as client:
        fill(ledger, client)
        before = client.info("memory")["used_memory"]
        drawn = RootIds(timedelta(seconds=30))
        for _ in range(25):
            roots = drawn.draw(2000)
            ledger.register(1, roots, mix_array(np.array(roots, np.uint64)).tolist())
        taken = client.info("memory")["used_memory"] - before
        buckets = [key for name, key in keys_of(client, ledger).items() if name.startswith("b:")]
        assert {client.object("ENCODING", key) for key in buckets} == {b"listpack"}
        assert max(client.hlen(key) for key in buckets) <= 128
    assert ledger.pending() == 50_001
    assert taken / 50_000 <= 28


def test_a_tree_takes_the_same_memory_however_big_it_is(client, open_one):
    ledger = open_one()
    bucket = next(key for name, key in fill(ledger, client).items() if name.startswith("b:"))
    before = client.memory_usage(bucket)
    for task in range(100):
        edges = mix_array(np.arange(1000 * task, 1000 * (task + 1), dtype=np.uint64))
        xor = np.array([np.bitwise_xor.reduce(edges)], np.uint64)
        ledger.apply(token(task, run="tree"), Updates(roots=np.array([OTHER], np.uint64), xors=xor))
    assert client.memory_usage(bucket) == before


def test_a_reader_deletes_what_it_has_read(client, open_one):
    ledger = open_one()
    feed = ledger.feed(1)
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(), updates({ROOT: A}))
    assert feed.read(NOW)
    assert not feed.read(NOW)
    assert client.xlen(keys_of(client, ledger)["feed:1"]) == 0
    feed.close()


def test_a_topology_may_have_any_name(client, open_one):
    ledger = open_one(topology="of {braces} * and:colons")
    feed = ledger.feed(1)
    ledger.register(1, [ROOT], [A])
    assert ledger.pending() == 1
    assert ledger.apply(token(), updates({ROOT: A})).completed == 1
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    feed.close()


def test_ledgers_of_two_topologies_do_not_meet(open_one):
    first = open_one(topology="first")
    second = open_one(topology="first:0}")
    first.register(1, [ROOT], [A])
    assert second.apply(token(), updates({ROOT: A})).late == 1
    assert (first.release([ROOT]), second.pending()) == (1, 0)


def test_outcomes_of_an_owner_that_a_smaller_ledger_does_not_know_are_dropped(open_one):
    ledger = open_one(owners=3)
    feed = ledger.feed(1)
    ledger.register(3, [ROOT], [A])
    ledger.register(1, [OTHER], [B])
    smaller = open_one(topology=ledger._spec.topology, owners=2)
    assert smaller.apply(token(), updates({ROOT: A, OTHER: B})).completed == 2
    assert said(feed.read(NOW)) == {"acked": [OTHER]}
    feed.close()


def test_the_steps_of_a_shard_lie_in_one_small_hash_however_many_there_were(client, open_one):
    ledger = open_one()
    for step in range(50):
        for task in range(8):
            ledger.apply(token(task, step=step), updates({ROOT: A}))
    hash_key = keys_of(client, ledger)["tokens"]
    assert client.hlen(hash_key) == 8
    assert client.object("ENCODING", hash_key) == b"listpack"
    assert client.memory_usage(hash_key) < 8 * 60
    ledger.begin("next")
    assert client.hkeys(hash_key) == [b"run", b"over"]


def everything(ledger) -> None:
    """Run every script, over all shards and several slices."""
    ledger.begin("run")
    ledger.fence("run", 0, 0)
    drawn = RootIds(timedelta(seconds=30)).draw(5000)
    roots = np.sort(np.array(drawn, np.uint64))
    ledger.register(1, [*drawn, 5], [*mix_array(np.array(drawn, np.uint64)).tolist(), 0])
    ledger.reset_timeout(drawn)
    half = roots[::2]
    failures = [failure(int(root)) for root in roots[1:100:2]]
    for _ in range(2):
        ledger.apply(token(), Updates(roots=half, xors=mix_array(half)), failures)
    ledger.fail([failure(int(root)) for root in roots[101:201:2]])
    assert ledger.release(roots[201::2].tolist()) == 2400
    ledger.forget(drawn)


def test_all_keys_of_a_call_lie_in_one_slot_and_shards_in_several(open_one, monkeypatch):
    calls: list[set[int]] = []
    run = ShardScripts._call

    def recorded(self, script, keys, *rest):
        calls.append({key_slot(key.encode()) for key in [*self._keys.feeds, *keys]})
        return run(self, script, keys, *rest)

    monkeypatch.setattr(ShardScripts, "_call", recorded)
    everything(open_one(shards=4))
    assert {len(slots) for slots in calls} == {1}
    assert len(set().union(*calls)) == 4


def test_calls_of_all_shards_on_one_server_leave_together_with_those_of_other_stores(
    open_one, redis_url, monkeypatch
):
    trips: list[int] = []
    send = Pool.exchange

    def counted(self, commands):
        trips.append(len(commands))
        return send(self, commands)

    ledger = open_one(shards=4)
    # Drawn roots fall into twenty buckets, which in one of a hundred draws leave a shard empty.
    roots = [high << 40 | 7 for high in range(2000)]
    every = updates(dict.fromkeys(roots, A))
    ledger.register(1, roots, [A] * len(roots))
    ledger.apply(token(1), updates({ROOT: A}))
    monkeypatch.setattr(Pool, "exchange", counted)
    other_store = RedisServer(redis_url).command("PING", read=bool, verb="ping")
    *replies, pong = perform_all([*ledger.applying(token(), every), other_store])
    assert pong
    assert total(replies).completed == 2000
    assert trips == [5]


def test_roots_spread_evenly_over_the_shards(open_one, client):
    ledger = open_one(shards=4)
    roots = RootIds(timedelta(seconds=30)).draw(40_000)
    # Roots are sharded by their bucket, of which there are 417: 104 per shard, plus or minus nine.
    ledger.register(1, roots, [A] * len(roots))
    sizes = []
    for shard in range(4):
        keys = client.keys(f"tiercel:{{{ledger._spec.topology}:{shard}}}:b:*")
        sizes.append(sum(client.hlen(key) for key in keys))
    assert sum(sizes) == 40_000
    assert min(sizes) > 6_000


@pytest.fixture
def cluster_url(tmp_path):
    """One server in cluster mode with all slots: it refuses a script that touches a key outside the
    slot of its KEYS.
    """
    port = free_port()
    bus_port = free_port()
    arguments = [
        "--port",
        port,
        "--cluster-port",
        bus_port,
        "--bind",
        "127.0.0.1",
        "--dir",
        tmp_path,
        "--save",
        "",
    ]
    server = subprocess.Popen(
        ["redis-server", *map(str, arguments), "--cluster-enabled", "yes", "--loglevel", "warning"],
        stdout=subprocess.DEVNULL,
    )
    try:
        with connect(f"redis://127.0.0.1:{port}/0") as client:
            wait_until(lambda: _answers(client))
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: client.execute_command("CLUSTER INFO").get("cluster_state") == "ok")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


def _answers(client) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


def test_the_scripts_keep_to_a_clusters_rules(cluster_url):
    spec = LedgerSpec(
        topology="t", urls=(cluster_url,), shards=3, owners=3, message_timeout=timedelta(seconds=30)
    )
    ledger = RedisLedger(spec)
    everything(ledger)
    assert ledger.pending() == 0
    ledger.close()

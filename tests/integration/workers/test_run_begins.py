"""The driver takes over the remains of the previous run from Redis, or says why it cannot."""

from __future__ import annotations

import uuid
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.chunks import chunk
from tests.support.inboxes import parcel, put
from tests.support.ledgers import ROOT, A, token, updates
from tests.support.pump import Source
from tests.support.states import begin, break_off, commit_turn
from tiercel import BasicBolt, Config, RedisRefusedError, StatefulBolt, TopologyBuilder
from tiercel.acker.ids import EXTRA
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.acker.ledger import Applied
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.errors import StateLayoutError
from tiercel.spark_jobs.state import redis_shard
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import Writes
from tiercel.spark_jobs.topology.graph import ledger_spec_of
from tiercel.workers.control.redis_control import RedisControl
from tiercel.workers.control.registry import known_topologies, topology_named
from tiercel.workers.driver.process import Driver

BOLT = 2


class Count(StatefulBolt):
    pass


def topology(name, *, ackers=1, bolt=None):
    builder = TopologyBuilder(name, Config(ackers=ackers))
    builder.set_spout("words", Source())
    builder.set_bolt("count", bolt or BasicBolt()).fields_grouping("words", "word")
    return builder.build()


@pytest.fixture
def name():
    return f"begins-{uuid.uuid4().hex}"


@pytest.fixture
def drive(redis_url, name):
    """``drive(…)`` is a driver with the lease; only one has it at a time."""
    made = []

    def driver(**settings):
        for other in made:
            other._runs.close()
        made.append(Driver(topology(name, **settings), (redis_url,), "local[2]"))
        assert made[-1]._runs.wait_for_turn()
        return made[-1]

    yield driver
    for one in made:
        one._runs.close()


def test_a_run_has_the_numbers_of_tasks_that_were_ordered_and_the_monitor_knows(
    drive, name, redis_url
):
    with closing(RedisControl(redis_url, name)) as control:
        control.rebalance({"count": 3, "gone": 2})
        driver = drive()
        assert name not in known_topologies(redis_url), (
            "a driver in reserve leaves the note to the one that works"
        )
        run = driver._runs.begin(2)
        assert run.topology.parallelism == {"count": 3}
        assert run.hosts == ((2, 4), (3,))
        assert topology_named(redis_url, name).graph.bolt_tasks == [2, 3, 4]
        control.rebalance({"count": None})
        driver._runs.begin(2)
        assert topology_named(redis_url, name).graph.bolt_tasks == [2]


def test_what_a_task_that_is_gone_left_half_done_in_a_state_is_taken_back(
    drive, name, redis_url, monkeypatch
):
    spec = ledger_spec_of(topology(name, bolt=Count()), (redis_url,))
    fields = [b"%d" % number for number in range(5)]
    with closing(RedisStateStore(spec, run_number=1)) as store:
        commit_turn(begin(store, "count", 0, 1), Writes(increments=dict.fromkeys(fields, 1)), "d")
        turn = begin(store, "count", 3, 1)
        monkeypatch.setattr(redis_shard, "SLICE", 3)
        break_off(turn, Writes(increments=dict.fromkeys(fields, 1)), 1)
        assert set(dict(store.entries("count")).values()) == {b"1", b"2"}
        drive(bolt=Count())._runs.begin(1)
        assert set(dict(store.entries("count")).values()) == {b"1"}


def test_the_counts_of_extra_tasks_that_are_over_go_to_their_bolt(drive, name, redis_url):
    """Otherwise those of weeks pile up, and driver and monitors read all of them each second."""
    driver = drive()
    with closing(RedisMetrics(redis_url, name)) as metrics:
        metrics.add_all(
            {("count", task): {"executed": 1} for task in (2, EXTRA + 2, 2 * EXTRA + 2)}
        )
        run = driver._runs.begin(2)
        assert metrics.totals() == {"count": {0: {"executed": 2}, 2: {"executed": 1}}}
        tasks = [EXTRA + 2, 2 * EXTRA + 2]
        driver._context.inboxes.adopt(run.id, [2, *tasks])
        metrics.add_all({("count", task): {"executed": 1} for task in tasks})
        driver._end_extra(run, tasks[:1])
        assert metrics.totals() == {
            "count": {0: {"executed": 3}, 2: {"executed": 1}, tasks[1]: {"executed": 1}}
        }


def test_tasks_of_the_run_before_change_nothing_once_a_run_begins(drive):
    driver = drive()
    first = driver._runs.begin(2)
    with closing(open_ledger(first.ledger)) as ledger, closing(ledger.feed(1)) as feed:
        ledger.register(1, [ROOT], [A])
        assert ledger.apply(token(run=first.id), updates({ROOT: 0})).applied is Applied.FRESH
        second = driver._runs.begin(2)
        assert int(second.id) > int(first.id)
        assert second.run_number == int(second.id)
        assert (
            ledger.apply(token(run=first.id, step=1), updates({ROOT: A})).applied is Applied.STALE
        )
        assert not feed.read(timedelta(0))
        assert ledger.apply(token(run=second.id), updates({ROOT: A})).completed == 1


def test_a_call_of_an_older_driver_that_comes_late_is_refused(drive):
    older = drive()
    first = older._runs.begin(2)
    second = drive()._runs.begin(2)
    with pytest.raises(StaleAttemptError, match=f"run {first.id} is over"):
        older._enter(first)
    assert older._runs.begin(2) is None, "it has the lease no more, and draws no run"
    assert drive()._enter(second) == 0


def test_what_was_in_the_inboxes_is_released(drive):
    driver = drive()
    run = driver._runs.begin(2)
    inboxes = driver._context.inboxes
    with closing(open_ledger(run.ledger)) as ledger, closing(ledger.feed(1)) as feed:
        ledger.register(1, [7, 8], [1, 1])
        assert put(inboxes, 1, parcel(chunk(7), target=BOLT), run=run.id) == [Appended.DONE]
        driver._runs.begin(2)
        assert feed.read(timedelta(seconds=1)).released == [7]
        assert put(inboxes, 2, parcel(chunk(8), target=BOLT), run=run.id) == [Appended.STALE]


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1), (3, 2)])
def test_a_state_with_another_number_of_shards_ends_the_driver_with_one_line(
    drive, redis_url, name, then, now
):
    with closing(
        RedisStateStore(ledger_spec_of(topology(name, ackers=then), (redis_url,)), run_number=1)
    ) as store:
        # Keys for every shard.
        writes = Writes(puts={b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"})
        commit_turn(begin(store, "count", 0, 0), writes, "digest")
    driver = drive(ackers=now, bolt=Count())
    with pytest.raises(StateLayoutError) as caught:
        driver.run()
    assert str(caught.value) == (
        f"the state of 'count' was written with ackers={then}, now it is {now}: set ackers={then} "
        f"again, or remove the state"
    )
    assert driver._context.lease.holder() is None
    assert drive(ackers=then, bolt=Count())._runs.begin(2)


def test_a_state_that_is_empty_may_have_another_number_of_shards(drive, redis_url, name):
    with closing(
        RedisStateStore(ledger_spec_of(topology(name, ackers=2), (redis_url,)), run_number=1)
    ) as store:
        commit_turn(begin(store, "count", 0, 0), Writes(puts={b"a": b"1"}), "digest")
        commit_turn(begin(store, "count", 0, 1), Writes(deletes={b"a"}), "other digest")
    assert drive(ackers=1, bolt=Count())._runs.begin(2)


@pytest.fixture
def evicting(redis):
    """``evicting(policy, maxmemory)`` is the URL of a Redis with these settings."""
    server = redis()

    def told(policy="allkeys-lru", maxmemory="100mb"):
        with closing(connect(server.url)) as client:
            client.config_set("maxmemory-policy", policy)
            client.config_set("maxmemory", maxmemory)
        return server.url

    return told


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_drops_keys_is_refused_where_a_state_is_kept_before_anything_of_it_is_used(
    evicting, name, policy
):
    url = evicting(policy)
    with pytest.raises(RedisRefusedError) as caught:
        Driver(topology(name, bolt=Count()), (url,), "local[1]").run()
    at = url.rpartition("@")[2].partition("/")[0]
    assert str(caught.value) == (
        f"Redis at {at} drops keys when its memory is full (maxmemory-policy {policy}), and with "
        "them the state of count; set maxmemory-policy noeviction"
    )


def test_a_redis_that_drops_keys_is_named_in_one_line_where_no_state_is_kept(
    evicting, name, caplog
):
    driver = Driver(topology(name, ackers=3), (evicting(),), "local[1]")
    assert driver._runs.wait_for_turn()
    driver._runs.begin(1)
    driver._runs.close()
    (line,) = [each.message for each in caplog.records if "drops keys" in each.message]
    assert "(maxmemory-policy allkeys-lru)" in line
    assert line.endswith("set maxmemory-policy noeviction")


@pytest.mark.parametrize("settings", [("noeviction", "100mb"), ("allkeys-lru", "0")])
def test_a_redis_that_drops_nothing_is_taken_as_it_is(evicting, name, caplog, settings):
    driver = Driver(topology(name, bolt=Count()), (evicting(*settings),), "local[1]")
    assert driver._runs.wait_for_turn()
    assert driver._runs.begin(1)
    driver._runs.close()
    assert "drops keys" not in caplog.text


def test_a_redis_that_does_not_let_itself_be_asked_is_taken_as_it_is(evicting, name):
    url = evicting()
    with closing(connect(url)) as client:
        client.acl_setuser(
            "app",
            enabled=True,
            passwords=["+s3cret"],
            keys=["*"],
            categories=["+@all"],
            commands=["-info", "-config"],
        )
    theirs = f"redis://app:s3cret@{url.rpartition('@')[2]}"
    driver = Driver(topology(name, bolt=Count()), (theirs,), "local[1]")
    assert driver._runs.wait_for_turn()
    assert driver._runs.begin(1)
    driver._runs.close()

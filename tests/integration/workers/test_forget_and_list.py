"""``tiercel list`` and ``tiercel forget``: which topologies exist, and how one is removed."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.broker import unique
from tests.support.presences import renewed
from tests.support.pump import Source
from tests.support.states import begin, commit_turn
from tiercel import QueueSpout, StatefulBolt, TopologyBuilder
from tiercel.acker.metrics.contract import ErrorReport
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import Writes
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Holder, Lease, Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry, topology_named
from tiercel.workers.errors import UsageError


@pytest.fixture
def names(redis_url):
    """Two topologies that ran and left data; one's name is the beginning of the other's."""
    first = unique("ran")
    names = [first, f"{first}.more"]
    for name in names:
        builder = TopologyBuilder(name)
        builder.set_spout("lines", Source(), parallelism=2)
        builder.set_spout("orders", QueueSpout(f"q-{name}"))
        builder.set_bolt("count", StatefulBolt()).shuffle_grouping("lines")
        with closing(Registry(redis_url)) as registry:
            registry.announce(builder.build())
        spec = topology_named(redis_url, name).ledger_spec((redis_url,))
        with closing(RedisStateStore(spec, run_number=1)) as store:
            writes = Writes(puts={b'"a"': b"1", b'"b"': b"2"})
            commit_turn(begin(store, "count", 0, 1), writes, "digest")
        with closing(RedisMetrics(redis_url, name)) as metrics:
            metrics.add_all({("count", 4): {"acked": 7}})
            metrics.report(
                [ErrorReport(at=datetime.now(UTC), component="count", task=4, message="no")]
            )
    yield names
    with closing(connect(redis_url)) as client:
        for key in keys_of(client, first):
            client.delete(key)


def keys_of(client, name):
    return {key for end in ("}:*", ":*}:*") for key in client.scan_iter(f"tiercel:{{{name}{end}")}


def listed(tiercel, name):
    rows = [json.loads(line) for line in tiercel("list", "--json")[1].splitlines()]
    return next((row for row in rows if row["topology"] == name), None)


def test_a_topology_that_is_forgotten_is_gone_and_no_other(tiercel, names, redis_url):
    gone, other = names
    with closing(connect(redis_url)) as client:
        # Some keys last for seconds only: less than this test on a busy machine.
        others = {key for key in keys_of(client, other) if client.ttl(key) == -1}
        assert len(others) > 3
        code, said = tiercel("forget", gone, answer="y\n")
        assert code == 0
        assert f"forgot {gone}: " in said
        assert keys_of(client, gone) == set()
        for key in others:
            assert client.exists(key), key
    assert listed(tiercel, gone) is None
    assert listed(tiercel, other) is not None
    with closing(Registry(redis_url)) as registry:
        assert gone not in registry.topologies()
        assert registry.topologies()[other].graph.queues == [f"q-{other}"]
    with pytest.raises(UsageError, match="there is no topology"):
        tiercel("forget", gone, "--yes")
    assert tiercel("forget", other, "--yes")[0] == 0
    assert listed(tiercel, other) is None


def test_it_says_what_is_lost_and_asks(tiercel, names):
    code, said = tiercel("forget", names[0], answer="n\n")
    assert code == 1
    assert "the entries of its states (2 in the state of count)" in said
    assert "Messages in RabbitMQ stay." in said
    assert tiercel("forget", names[0])[0] == 1, "nobody can answer"
    assert tiercel("state", names[0], "count", "a")[0] == 0


def test_while_something_runs_it_is_refused(tiercel, names, redis_url):
    name = names[0]
    with closing(RedisPresences(redis_url, name)) as presences:
        lease, seats = Lease(presences), SpoutSeats(presences)
        lease.take(Holder(driver="here"))
        with pytest.raises(UsageError, match=rf"runs \(the driver\): tiercel kill {name} first"):
            tiercel("forget", name, "--yes")
        lease.leave("here")
        seats.take("worker", [2])
        with pytest.raises(UsageError, match=r"runs \(spout task 2\)"):
            tiercel("forget", name, "--yes")
        seats.leave("worker", 2)
    assert tiercel("state", name, "count", "a")[0] == 0


def test_it_may_be_started_again_with_nothing_left(tiercel, names, redis_url):
    tiercel("forget", names[0], "--yes")
    with closing(RedisPresences(redis_url, names[0])) as presences:
        lease = Lease(presences)
        assert lease.take(Holder(driver="new"))
        assert lease.draw("new") is not None
        lease.leave("new")


def test_the_list_says_what_runs(tiercel, names, redis_url):
    name = names[0]
    row = listed(tiercel, name)
    assert row == {
        "topology": name,
        "health": "in trouble",
        "findings": 1,
        "ordered": "active",
        "running": False,
        "driver": False,
        "spout_workers": 0,
        "spout_tasks": 3,
        "in_flight": 0,
        "last_run": None,
    }
    with closing(RedisControl(redis_url, name)) as control:
        control.order(State.DEACTIVATED)
    assert "not running, deactivated" in tiercel("list", width=300)[1]
    with closing(RedisPresences(redis_url, name)) as presences:
        lease, seats = Lease(presences), SpoutSeats(presences)
        place = Whereabouts(host="box-7", pid=41, since=datetime.now(UTC))
        lease.take(Holder(driver="here", whereabouts=place))
        lease.draw("here")
        seats.take("worker", [2])
        with renewed(
            lambda: lease.take(Holder(driver="here", whereabouts=place)),
            lambda: seats.report("worker", 2, Presence(active=False, pending=12)),
        ):
            row = listed(tiercel, name)
            # In 80 columns, longer names of other tests leave no room for the whole name.
            line, narrow = (
                next(line for line in tiercel("list", width=width)[1].splitlines() if shown in line)
                for width, shown in ((300, name), (80, name[:12]))
            )
        assert (row["ordered"], row["running"], row["driver"]) == ("deactivated", True, True)
        assert (row["spout_workers"], row["in_flight"]) == (1, 12)
        assert (row["health"], row["findings"] > 0) == ("in trouble", True), "tasks lack a process"
        began = datetime.fromisoformat(row["last_run"])
        assert abs(datetime.now(UTC) - began) < timedelta(minutes=1)
        assert "deactivated" in line
        assert "in trouble" in line
        assert "box-7, pid 41" in line
        assert "1/3" in line
        assert "in trouble" in narrow
        assert "1/3" in narrow
        seats.leave("worker", 2)
        lease.leave("here")

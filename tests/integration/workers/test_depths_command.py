"""``tiercel depths`` on real servers: RabbitMQ's queues and our own, for people, scripts and
alarms.
"""

import json
import socket
import time
from contextlib import closing
from datetime import timedelta

import pytest
from pika import BlockingConnection
from typer.testing import CliRunner

from tests.support.broker import Desk, delete, put, unique
from tests.support.inboxes import parcel
from tests.support.inboxes import put as append
from tests.support.waiting import wait_until
from tiercel import (
    BasicBolt,
    Config,
    QueueSink,
    QueueSpout,
    TopologyBuilder,
    WorkQueue,
    declare_queue,
)
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.metrics.contract import Window
from tiercel.acker.redis.scripts import RedisServers
from tiercel.acker.redis_ledger import open_ledger
from tiercel.queues.broker.depths import DepthReader, QueueDepth
from tiercel.queues.errors import BrokerUnavailableError
from tiercel.workers.cli.app import app
from tiercel.workers.control.presence import Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.control.registry import Registry
from tiercel.workers.monitoring.page.sections import tables_of
from tiercel.workers.monitoring.tables import QUEUES
from tiercel.workers.monitoring.watcher import Addresses, Watcher

# Addresses where nothing listens.
GONE = {"amqp": "amqp://u:hush@127.0.0.1:9/", "redis": "redis://:hush@127.0.0.1:9/0"}
# The figures come from the management interface and AMQP, which differ between versions.
pytestmark = pytest.mark.newest


@pytest.fixture
def name(amqp_url, redis_url):
    """An announced topology, and its queue of the same name."""
    name = unique("watched")
    builder = TopologyBuilder(name, Config(ackers=2))
    builder.set_spout("lines", QueueSpout(name), parallelism=2)
    builder.set_bolt("sink", BasicBolt(), 2).shuffle_grouping("lines")
    Registry(redis_url).announce(builder.build())
    declare_queue(amqp_url, WorkQueue(name=name))
    yield name
    for queue in (name, f"{name}.dead"):
        delete(amqp_url, queue)


@pytest.fixture
def tiercel(amqp_url, redis_url, management_url):
    def run(*arguments, management=management_url):
        servers = [
            "--amqp",
            amqp_url,
            "--redis",
            redis_url,
            *(["--management", management] if management else []),
        ]
        result = CliRunner().invoke(app, ["depths", *servers, *arguments], env={"COLUMNS": "200"})
        return result.exit_code, result.output

    return run


def looked(tiercel, name, **options):
    code, said = tiercel(name, "--json", **options)
    assert code == 0, said
    # Only the last line: leftovers of other tests may be logged before it.
    found = json.loads(said.splitlines()[-1])
    return found["queues"][0], found["topologies"]


def test_a_queue_that_never_had_a_message_has_zeros_everywhere(tiercel, name):
    wait_until(lambda: looked(tiercel, name)[0]["dead_lettered"] is not None)
    queue, _ = looked(tiercel, name)
    assert queue == {
        "name": name,
        "ready": 0,
        "unacked": 0,
        "delayed": 0,
        "consumers": 0,
        "in_rate": 0,
        "out_rate": 0,
        "dead_lettered": 0,
        "use": "source",
    }


def test_it_counts_what_waits_what_is_held_what_is_dead_and_what_moves(tiercel, name, amqp_url):
    put(amqp_url, name, *[b"x"] * 5)
    put(amqp_url, f"{name}.dead", b"d")
    with Desk(amqp_url, name, prefetch=2) as desk:
        to_ack = desk.take(2)[:1]
        wait_until(
            lambda: (queue := looked(tiercel, name)[0])["unacked"] == 2 and queue["ready"] == 3
        )
        wait_until(lambda: looked(tiercel, name)[0]["consumers"] >= 1)
        wait_until(lambda: looked(tiercel, name)[0]["dead_lettered"] == 1)

        def moves():
            put(amqp_url, name, b"y")
            desk.ack(to_ack.pop() if to_ack else desk.next())
            queue = looked(tiercel, name)[0]
            return queue["in_rate"] > 0 and queue["out_rate"] > 0

        wait_until(moves)
    assert tiercel(name)[1].count(name) >= 2, "a row of the queue, and one of its topology"


def test_queues_are_counted_on_one_channel_until_one_of_them_is_missing(
    amqp_url, name, monkeypatch
):
    opened = []
    channel = BlockingConnection.channel

    def counted(connection, *arguments):
        opened.append(1)
        return channel(connection, *arguments)

    put(amqp_url, name, b"x")
    with closing(DepthReader(amqp_url)) as reader:
        monkeypatch.setattr(BlockingConnection, "channel", counted)
        wait_until(lambda: reader.look([name])[0].ready == 1)
        opened.clear()
        found = reader.look([name] * 3)
        assert [depth.ready for depth in found] == [1, 1, 1]
        assert len(opened) == 1
        found = reader.look([name, "no-such-queue", name])
        assert [depth.ready for depth in found] == [1, 1]
        assert len(opened) == 3


def test_without_the_management_interface_it_tells_what_amqp_does(tiercel, name, amqp_url):
    put(amqp_url, name, b"x")
    for management in (None, "http://127.0.0.1:9"):
        wait_until(
            lambda management=management: (
                looked(tiercel, name, management=management)[0]["ready"] == 1
            )
        )
        queue, _ = looked(tiercel, name, management=management)
        assert [queue[key] for key in ("unacked", "delayed", "in_rate", "out_rate")] == [None] * 4
        shown = tiercel(name, management=management)[1]
        assert "?" in shown
        why = "cannot be reached (Connection refused)" if management else "with --management"
        assert why in shown, "a figure that is unknown has its reason"


def test_each_server_s_figures_are_shown_while_the_other_is_away(tiercel, name, amqp_url):
    put(amqp_url, name, b"x")
    wait_until(lambda: looked(tiercel, name)[0]["ready"] == 1)
    for away in ("redis", "amqp"):
        code, said = tiercel(name, "--json", f"--{away}", GONE[away])
        found = json.loads(said.splitlines()[-1])
        assert code == 2
        assert [each["ready"] for each in found["queues"]] == ([1] if away == "redis" else [])
        own = [each["topology"] for each in found["topologies"]]
        assert own == ([] if away == "redis" else [name])
        (problem,) = [each for each in found["problems"] if "127.0.0.1:9" in each]
        code, said = tiercel(name, f"--{away}", GONE[away])
        assert code == 2
        assert problem[:40] in said
        assert "hush" not in said + problem


def test_where_both_servers_are_away_there_is_nothing_to_show(name):
    words = [f"--{server}={url}" for server, url in GONE.items()]
    result = CliRunner().invoke(app, ["depths", name, *words])
    assert isinstance(result.exception, BrokerUnavailableError)


def test_our_own_queues_are_measured(tiercel, name, redis_url):
    inboxes = RedisInboxes(RedisServers((redis_url,)), name)
    inboxes.adopt("run", [3, 4])
    append(
        inboxes,
        1,
        parcel(b"a", target=3, tuples=[1]),
        parcel(b"b", b"c", target=4, tuples=[20, 300]),
    )
    spec = LedgerSpec(
        topology=name, urls=(redis_url,), shards=2, owners=2, message_timeout=timedelta(seconds=30)
    )
    ledger = open_ledger(spec)
    feed = ledger.feed(1)
    ledger.register(1, list(range(1, 101)), [7] * 100)
    ledger.release([1, 2, 3])
    spouts = SpoutSeats(RedisPresences(redis_url, name))
    spouts.report("one", 1, Presence(active=True, pending=97, oldest_s=12.5, in_back_off=4))
    spouts.report("other", 2, Presence(active=True, pending=0, oldest_s=0, in_back_off=1))
    wait_until(lambda: looked(tiercel, name)[1][0]["feed_lag_s"] > 0)
    [own] = looked(tiercel, name)[1]
    assert (own["topology"], own["waiting"], own["pending"], own["oldest_pending_s"]) == (
        name,
        321,
        97,
        12.5,
    )
    assert own["in_back_off"] == 5
    assert own["oldest_waiting_s"] > 0
    assert own["feed_entries"] >= 1
    feed.read(timedelta(0))
    feed.read(timedelta(0))
    assert looked(tiercel, name)[1][0]["feed_entries"] == 0
    for each in (inboxes, ledger, spouts):
        each.close()


def test_a_queue_is_shown_while_any_topology_that_reads_it_is_known(tiercel, name, redis_url):
    other = unique("other")
    builder = TopologyBuilder(other)
    builder.set_spout("lines", QueueSpout(name))
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    with closing(Registry(redis_url)) as registry:
        registry.announce(builder.build())
        found = looked(tiercel, name)[1]
        assert {each["topology"] for each in found} == {name, other}
        registry.forget(other)
    code, said = tiercel("--json", "--fail-above", f"{name}=0")
    assert code == 0, said
    assert name in said


def test_it_exits_with_1_if_more_waits_than_may(tiercel, name, amqp_url):
    put(amqp_url, name, b"x", b"y")
    put(amqp_url, f"{name}.dead", b"d")
    wait_until(
        lambda: (
            looked(tiercel, name)[0]["ready"] == 2
            and looked(tiercel, name)[0]["dead_lettered"] == 1
        )
    )
    assert tiercel(name, "--fail-above", f"{name}=2", "--fail-above", f"{name}.dead=1")[0] == 0
    code, said = tiercel(name, "--fail-above", f"{name}=1")
    assert (code, said.splitlines()[-1]) == (1, f"tiercel: 2 messages in {name}, more than 1")
    code, said = tiercel(name, "--fail-above", f"{name}.dead=0")
    assert (code, said.splitlines()[-1]) == (1, f"tiercel: 1 message in {name}.dead, more than 0")


def test_it_watches_until_there_is_too_much(tiercel, name, amqp_url):
    put(amqp_url, name, b"x")
    assert tiercel(name, "--watch", "--fail-above", f"{name}=0")[0] == 1


@pytest.mark.parametrize("given", ["sentences", "=3", "sentences=-1", "sentences=many"])
def test_a_limit_that_is_none_is_refused(tiercel, given):
    with pytest.raises(Exception, match="QUEUE=N"):
        CliRunner().invoke(app, ["depths", "--fail-above", given], catch_exceptions=False)


def test_monitors_pass_over_a_queue_that_is_not_there(amqp_url, management_url, name):
    missing = unique()
    for management in (management_url, None):
        with closing(DepthReader(amqp_url, management)) as reader:
            assert [depth.name for depth in reader.look([missing, name])] == [name]
            assert isinstance(reader.look([name])[0], QueueDepth)
            assert reader.look([missing]) == reader.look([]) == []


def test_a_management_interface_that_is_silent_is_left_alone_for_a_while(amqp_url, name):
    # The server accepts connections and never answers, so each request would wait.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with closing(DepthReader(amqp_url, f"http://127.0.0.1:{port}")) as reader:
            assert reader.look([name])[0].unacked is None
            silent.accept()[0].close()
            assert reader.look([name])[0].unacked is None
            silent.settimeout(0.1)
            with pytest.raises(TimeoutError):
                silent.accept()


def test_what_was_confirmed_is_counted_at_once_though_statistics_lag(
    amqp_url, management_url, name
):
    """Statistics are refreshed every five seconds, which is too late right after a confirm."""
    late = 0
    with closing(DepthReader(amqp_url, management_url)) as reader:
        for count in range(1, 20):
            put(amqp_url, name, b"x")
            put_at = time.monotonic()
            # A quorum queue counts confirmed messages a moment later.
            wait_until(lambda count=count: reader.look([name])[0].ready == count)
            late += time.monotonic() - put_at > 1
    assert late <= 5, "a machine that stands still now and then"


def test_a_reader_connects_again_where_its_connection_has_gone(amqp_url, name):
    put(amqp_url, name, b"x")
    with closing(DepthReader(amqp_url)) as reader:
        wait_until(lambda: reader.look([name])[0].ready == 1)
        reader._connection.close()
        assert [depth.name for depth in reader.look([name])] == [name]
        wait_until(lambda: reader.look([name])[0].ready == 1)


@pytest.mark.rest
def test_a_reader_outlives_its_broker(rabbitmq):
    broker = rabbitmq()
    declare_queue(broker.url, WorkQueue(name="kept"))
    put(broker.url, "kept", b"x")
    with closing(DepthReader(broker.url)) as reader:
        wait_until(lambda: reader.look(["kept"])[0].ready == 1)
        broker.control("close_all_connections", "for a test")
        assert [depth.name for depth in reader.look(["kept"])] == ["kept"]
        wait_until(lambda: reader.look(["kept"])[0].ready == 1)
        broker.stop()
        with pytest.raises(BrokerUnavailableError):
            reader.look(["kept"])
        broker.start()
        wait_until(lambda: ready_or_away(reader) == 1)


def ready_or_away(reader):
    try:
        return next((depth.ready for depth in reader.look(["kept"])), None)
    except BrokerUnavailableError:
        return None


@pytest.fixture
def chained(amqp_url, redis_url):
    """A topology with a sink, whose queue may not exist yet."""
    name = unique("chained")
    builder = TopologyBuilder(name)
    builder.set_spout("lines", QueueSpout(name))
    builder.set_bolt("notify", QueueSink(f"{name}-out")).shuffle_grouping("lines")
    Registry(redis_url).announce(builder.build())
    declare_queue(amqp_url, WorkQueue(name=name))
    yield name
    for queue in (name, f"{name}-out"):
        for each in (queue, f"{queue}.dead"):
            delete(amqp_url, each)


def test_queues_of_sinks_are_shown_once_they_are_there(tiercel, chained, amqp_url):
    def uses():
        code, said = tiercel("--json")
        assert code == 0, said
        queues = json.loads(said.splitlines()[-1])["queues"]
        return {each["name"]: (each["use"], each["ready"]) for each in queues}

    assert uses()[chained] == ("source", 0)
    assert f"{chained}-out" not in uses()
    declare_queue(amqp_url, WorkQueue(name=f"{chained}-out"))
    put(amqp_url, f"{chained}-out", b"x")
    wait_until(lambda: uses()[f"{chained}-out"] == ("sink", 1))
    queue, topologies = looked(tiercel, f"{chained}-out")
    assert (queue["use"], [each["topology"] for each in topologies]) == ("sink", [chained])
    shown = tiercel(f"{chained}-out")[1]
    assert "sink" in shown
    assert "up to 5 s old" in shown


def test_the_monitor_sees_queues_of_sinks_apart_from_those_that_are_read(
    chained, amqp_url, redis_url
):
    declare_queue(amqp_url, WorkQueue(name=f"{chained}-out"))
    put(amqp_url, f"{chained}-out.dead", b"who reads the sink's queue has this dead letter")
    addresses = Addresses(redis_urls=(redis_url,), amqp_url=amqp_url)
    with closing(Watcher(addresses)) as watcher:
        wait_until(
            lambda: watcher.look(chained, Window.ALL_TIME).overview.sinks[0].dead_lettered == 1
        )
        overview = watcher.look(chained, Window.ALL_TIME).overview
    assert [(row.depth.name, row.use) for row in overview.queue_rows] == [
        (chained, "source"),
        (f"{chained}-out", "sink"),
    ]
    assert [depth.name for depth in overview.queues] == [chained]
    [_, sink] = tables_of(overview)[QUEUES]
    assert (sink["queue"], sink["use"], sink["dead letters"]) == (f"{chained}-out", "sink", "1")

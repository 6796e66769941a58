"""Inboxes on a real server: what is sent, which reader is woken, and servers that lose data, fill
up or go away.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.inboxes import (
    FIRST,
    NOW,
    ONE,
    RUN,
    SOON,
    TWO,
    commit,
    covering,
    opened,
    parcel,
    payloads,
    put,
    take,
)
from tests.support.proxy import Proxy
from tests.support.pump import Pump, Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, RedisUnavailableError, TopologyBuilder
from tiercel.acker.effects import Following, LocalEffect, perform_all
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.contract import Bounds, Claims, StaleAttemptError, StepOrderError
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.scripts import RedisServer, RedisServers
from tiercel.spark_jobs.running.backlog import waiting_roots

BOUNDS = Bounds(tuples=10, bytes=10_000_000)
MIB = 1024 * 1024


@pytest.fixture
def inboxes_on():
    """``inboxes_on(url, …)``: adopted inboxes of a new topology, or of the named one."""
    made = []

    def make(*urls, topology=None):
        made.append(
            RedisInboxes(RedisServers(urls), topology or f"inbox-{uuid.uuid4().hex}", BOUNDS)
        )
        made[-1].adopt(RUN, [ONE, TWO])
        return made[-1]

    yield make
    for inboxes in made:
        inboxes.close()


@pytest.fixture
def server(redis):
    return redis()


@pytest.fixture
def client(server):
    with closing(connect(server.url)) as made:
        yield made


def test_after_the_server_forgot_everything_every_call_of_the_old_run_is_stale(
    inboxes_on, server, client
):
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    taken = take(inbox)
    inbox.seal(covering(1, taken)).perform()
    client.flushall()
    client.script_flush()
    assert put(inboxes, 2, parcel(b"b")) == [Appended.STALE]
    assert not inbox.finish(1).perform()
    assert not inbox.seal(covering(2, taken)).perform()
    for refused in (
        lambda: take(inbox),
        lambda: take(inbox, wait=SOON),
        lambda: inbox.read([taken[0].position]),
        lambda: inboxes.draw(RUN, ONE),
        lambda: inboxes.fence(RUN, FIRST, [ONE]),
        lambda: inboxes.open(RUN, ONE, 1),
        lambda: inboxes.discard(RUN, ONE, [taken[0].position]),
    ):
        with pytest.raises(StaleAttemptError):
            refused()
    assert inboxes.beat(RUN, {ONE: 1}, {}, "").stale == [ONE]
    assert not inboxes.figures([ONE])[ONE].adopted
    assert inboxes.drain(RUN) == [], "there is nothing to be refused"
    assert client.dbsize() == 0, "refused calls leave nothing behind"
    inboxes.adopt("next", [ONE, TWO])
    assert put(inboxes, 1, parcel(b"c"), run="next") == [Appended.DONE]
    assert payloads(take(opened(inboxes, run="next"))) == [b"c"]


@pytest.mark.parametrize("wait", [NOW, SOON])
def test_tuples_that_come_back_with_older_data_are_taken_again(inboxes_on, server, client, wait):
    """The task has done all its tuples, and so has nothing to commit that would be refused."""
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    full = BOUNDS.tuples
    put(inboxes, 1, parcel(*[b"a"] * full))
    taken = take(inbox)
    client.save()
    assert commit(inbox, 1, taken)
    assert take(inbox) == []
    server.kill()
    server.start()
    assert put(inboxes, 2, parcel(b"b")) == [Appended.FULL]
    with pytest.raises(StepOrderError, match="came back with older data"):
        take(inbox, wait=wait)
    again = opened(inboxes)
    entries = take(again)
    assert payloads(entries) == [b"a"] * full
    assert commit(again, 1, entries)
    assert put(inboxes, 2, parcel(b"b")) == [Appended.DONE]
    assert payloads(take(again)) == [b"b"]


def test_a_step_under_way_covers_no_tuples_that_come_back_with_older_data(
    inboxes_on, server, client
):
    """Once it is finished, the inbox would count it as the last one, and the tuples before stay."""
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    put(inboxes, 2, parcel(b"b"))
    first = take(inbox, tuples=1)
    client.save()
    assert commit(inbox, 1, first)
    second = take(inbox)
    server.kill()
    server.start()
    with pytest.raises(StepOrderError, match="came back with older data"):
        inbox.seal(covering(2, second)).perform()
    again = opened(inboxes)
    assert again.opened.sealed is None
    assert payloads(take(again)) == [b"a", b"b"]


@pytest.mark.parametrize("goes_on", ["seals", "takes"])
def test_a_tuple_that_an_older_server_lacks_is_not_committed_beside_its_repeat(
    inboxes_on, server, client, goes_on
):
    """Two acks of one tuple leave its tree open: its message would time out."""
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    client.save()
    put(inboxes, 1, parcel(b"a"))
    taken = take(inbox)
    server.kill()
    server.start()
    assert put(inboxes, 1, parcel(b"a")) == [Appended.DONE], "its sender has lost its step too"
    with pytest.raises(StepOrderError, match="came back with older data"):
        inbox.seal(covering(1, taken)).perform() if goes_on == "seals" else take(inbox)
    again = opened(inboxes)
    assert commit(again, 1, take(again))
    assert take(again) == []


def test_a_full_server_refuses_spouts_and_lets_everything_else_pass(inboxes_on, server, client):
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a", b"b"))
    spout = inboxes.draw_sender()
    client.config_set("maxmemory", 1)
    for target in (ONE, TWO):
        refused = inboxes.append(RUN, spout, 2, [parcel(b"c", target=target)])[0]
        with pytest.raises(
            RedisUnavailableError,
            match=rf"cannot append to the inbox of task {target}: Redis is full .*its maxmemory",
        ):
            refused.perform()
    a, b = take(inbox)
    assert commit(inbox, 1, [a], part={b.position: b"\x01"})
    assert inboxes.beat(RUN, {ONE: 1}, {}, "").stale == []
    inboxes.fence(RUN, FIRST, [ONE])
    assert opened(inboxes).opened.done == {b.position: b"\x01"}
    inboxes.adopt("next", [ONE, TWO])
    assert [task for task, _ in inboxes.drain("next")] == [ONE]
    inboxes.discard("next", ONE, [b.position])
    client.config_set("maxmemory", 0)
    assert put(inboxes, 2, parcel(b"c"), run="next") == [Appended.DONE]


def test_a_full_server_takes_output_of_bolts_into_inboxes_that_hold_nothing(
    inboxes_on, server, client
):
    """The last bolts of a topology go on first, then those before them, so there is no deadlock."""
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    client.config_set("maxmemory", 1)
    parcels = [parcel(b"a"), parcel(b"a", target=TWO)]
    assert put(inboxes, 1, *parcels) == [Appended.DONE] * 2
    assert put(inboxes, 1, *parcels) == [Appended.REPEATED] * 2
    assert put(inboxes, 2, parcel(b"b")) == [Appended.FULL]
    assert put(inboxes, 2, parcel(b"b", bounded=False)) == [Appended.FULL]
    (a,) = take(inbox)
    assert commit(inbox, 1, [a])
    assert put(inboxes, 2, parcel(b"b")) == [Appended.DONE]
    (b,) = take(inbox)
    assert b.payload == b"b"
    client.config_set("maxmemory", 0)
    assert put(inboxes, 3, parcel(b"c")) == [Appended.DONE]


def test_a_wake_up_that_an_older_attempt_took_away_reaches_the_newer_one(
    inboxes_on, server, client
):
    inboxes = inboxes_on(server.url)
    older = opened(inboxes)
    newer = opened(inboxes)

    # The older attempt looked before it was replaced, and waits only now, ahead of the newer one.
    def wait_for_waiting(count):
        wait_until(lambda: client.info("clients")["blocked_clients"] == count, 10, "a wait")

    box = older._box
    waiting = box.server.wait([box.wake], timedelta(seconds=4), "wait")
    thief = threading.Thread(target=box.server.perform_waiting, args=([waiting],))
    take(newer)
    thief.start()
    wait_for_waiting(1)
    found = []
    began = time.monotonic()
    waiter = threading.Thread(target=lambda: found.append(payloads(take(newer, wait=SOON))))
    waiter.start()
    wait_for_waiting(2)
    put(inboxes, 1, parcel(b"a"))
    thief.join()
    with pytest.raises(StaleAttemptError):
        take(older)
    waiter.join(10)
    assert found == [[b"a"]]
    assert time.monotonic() - began < 10


def test_inboxes_on_a_server_that_is_not_theirs_any_more_are_drained(inboxes_on, redis_url):
    other = f"{redis_url.rpartition('/')[0]}/1"
    before = inboxes_on(redis_url)
    put(before, 1, parcel(b"a"), parcel(b"b", target=TWO))
    after = RedisInboxes(RedisServers([redis_url, other]), before._name, BOUNDS)
    after.adopt("next", [ONE, TWO])
    # Of the two tasks, 1 stays on the first server and 7 goes to the second.
    put(after, 1, parcel(b"c", target=TWO), run="next")
    found = after.drain("next")
    assert [(task, payloads(entries)) for task, entries in found] == [
        (ONE, [b"a"]),
        (TWO, [b"b"]),
        (TWO, [b"c"]),
    ]
    for task, entries in found[:2]:
        after.discard("next", task, [entry.position for entry in entries])
    assert [(task, payloads(entries)) for task, entries in after.drain("next")] == [(TWO, [b"c"])]
    assert payloads(take(opened(after, TWO, run="next"))) == [b"c"]
    after.close()


def test_a_payload_leaves_the_server_once(inboxes_on, server, client):
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    take(inbox)

    def sent():
        return client.info("stats")["total_net_output_bytes"]

    before = sent()
    put(inboxes, 1, parcel(b"x" * 1_000_000), parcel(b"y" * 1_000_000, target=TWO))
    inboxes.figures([ONE, TWO])
    assert sent() - before < 20_000
    taken = take(inbox)
    assert 1_000_000 < sent() - before < 1_020_000
    assert commit(inbox, 1, taken)
    assert take(inbox) == []
    assert opened(inboxes).opened.step == 1
    assert sent() - before < 1_040_000


def test_inboxes_are_adopted_in_as_many_round_trips_however_many_they_are(
    inboxes_on, redis_url, trips
):
    inboxes = inboxes_on(redis_url)
    trips.clear()
    inboxes.adopt("2", range(100, 400))
    assert trips == [1, 1, 302, 1], "look for inboxes, add 300, adopt 302, remove two"
    assert len(inboxes.snapshots("2")) == 0


def test_a_commit_is_one_round_trip_and_comes_in_order(inboxes_on, redis_url, trips):
    inboxes = inboxes_on(redis_url)
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    taken = take(inbox)
    trips.clear()
    appends = inboxes.append(RUN, FIRST, 2, [parcel(b"b"), parcel(b"c", target=TWO)])
    seal = inbox.seal(covering(1, taken))
    finish = inbox.finish(1)
    assert perform_all([seal, *appends, finish]) == [True, Appended.DONE, Appended.DONE, True]
    assert trips == [4]
    assert perform_all([seal, *appends, finish]) == [
        True,
        Appended.REPEATED,
        Appended.REPEATED,
        True,
    ]


def test_a_take_that_waits_finishes_the_last_step_in_one_round_trip(inboxes_on, redis_url, trips):
    inboxes = inboxes_on(redis_url)
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"a"))
    assert inbox.seal(covering(1, take(inbox))).perform()
    put(inboxes, 2, parcel(b"b"))
    trips.clear()
    assert payloads(inbox.take(1, 2**30, SOON, 1, Claims(0))) == [b"b"]
    assert trips == [3]
    assert inboxes.figures([ONE])[ONE].tuples == 1


@pytest.mark.parametrize("waits", [NOW, SOON])
def test_a_call_behind_a_take_is_made_in_its_round_trip_if_there_are_entries(
    inboxes_on, redis_url, trips, waits
):
    inboxes = inboxes_on(redis_url)
    inbox = opened(inboxes)
    server, key = RedisServer(redis_url), uuid.uuid4().hex
    count = server.script("return redis.call('INCR', KEYS[1])")
    then = Following(count([key], [], int, "count"))
    assert inbox.take(1, 2**30, NOW, None, Claims(0), then=then) == []
    assert then.reply is None
    put(inboxes, 1, parcel(b"a", b"b"))
    trips.clear()
    assert payloads(inbox.take(1, 2**30, waits, None, Claims(0), then=then)) == [b"a"]
    assert then.reply == 1
    assert len(trips) == 1
    opened(inboxes)
    with pytest.raises(StaleAttemptError):
        inbox.take(1, 2**30, waits, None, Claims(0), then=then)
    assert server.command("GET", key, verb="count").perform() == b"1"


def test_a_call_of_another_server_is_not_made_behind_a_take(inboxes_on, redis_url):
    inboxes = inboxes_on(redis_url)
    put(inboxes, 1, parcel(b"a"))
    other = RedisServer(f"{redis_url.rpartition('/')[0]}/1")
    for effect in (other.script("return 1")([], [], int, "count"), LocalEffect(lambda: 1)):
        then = Following(effect)
        assert payloads(opened(inboxes).take(1, 2**30, NOW, None, Claims(0), then=then)) == [b"a"]
        assert then.reply is None


def test_a_wake_up_that_is_lost_with_its_connection_costs_no_wait(inboxes_on, redis_url):
    with Proxy(redis_url) as proxy:
        inboxes = inboxes_on(proxy.url)
        inbox = opened(inboxes)
        take(inbox)
        proxy.lose_next(after=1)
        put(inboxes, 1, parcel(b"a"))
        began = time.monotonic()
        assert payloads(take(inbox, wait=SOON)) == [b"a"]
        assert time.monotonic() - began < 4
        assert proxy.lost == 1


def test_scripts_that_the_server_forgot_do_not_keep_a_take_waiting(inboxes_on, server, client):
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    take(inbox)
    put(inboxes, 1, parcel(b"a"))
    client.script_flush()
    began = time.monotonic()
    assert payloads(take(inbox, wait=SOON)) == [b"a"]
    assert time.monotonic() - began < 4


def test_scripts_that_the_server_forgot_are_sent_again_and_nothing_happens_twice(
    inboxes_on, server, client
):
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    assert commit(inbox, 1, [])
    put(inboxes, 1, parcel(b"a"))
    taken = take(inbox)
    client.script_flush()
    with closing(RedisInboxes(RedisServers([server.url]), "another")) as other:
        put(other, 1, parcel(b"z"))
    # The server recognizes the append but not the seal, so the whole batch is repeated.
    appends = inboxes.append(RUN, FIRST, 2, [parcel(b"b")])
    replies = perform_all([inbox.seal(covering(2, taken)), *appends, inbox.finish(2)])
    assert replies == [True, Appended.REPEATED, True]
    assert payloads(take(inbox)) == [b"b"]


def test_an_idle_task_asks_seldom(inboxes_on, server, client):
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    take(inbox)

    def calls():
        stats = client.info("commandstats")
        return sum(
            stats[name]["calls"] for name in stats if name in ("cmdstat_evalsha", "cmdstat_blpop")
        )

    before = calls()
    assert take(inbox, wait=timedelta(seconds=6)) == []
    assert calls() - before <= 5


def test_calls_whose_replies_were_lost_take_effect_once(inboxes_on, redis_url):
    with Proxy(redis_url) as proxy:
        inboxes = inboxes_on(proxy.url)
        inbox = opened(inboxes)
        put(inboxes, 1, parcel(b"a"))
        taken = take(inbox)
        assert commit(inbox, 1, taken)
        proxy.lose_next()
        # According to the reply, the client itself repeated the call.
        assert put(inboxes, 2, parcel(b"b")) == [Appended.REPEATED]
        proxy.lose_next()
        taken = take(inbox)
        assert payloads(taken) == [b"b"]
        seal = inbox.seal(covering(2, taken))
        proxy.lose_next()
        assert seal.perform()
        proxy.lose_next()
        assert inbox.finish(2).perform()
        assert proxy.lost == 4
        assert inboxes.figures([ONE])[ONE].tuples == 0


def test_a_server_that_is_not_there_is_one_clear_line():
    inboxes = RedisInboxes(RedisServers(["redis://:secret@127.0.0.1:1/0"]), "nowhere")
    with pytest.raises(
        RedisUnavailableError, match=r"^cannot look for inboxes: Redis does not answer"
    ) as caught:
        inboxes.adopt(RUN, [ONE])
    assert "secret" not in str(caught.value)
    for call in (lambda: put(inboxes, 1, parcel(b"a")), lambda: inboxes.draw(RUN, ONE)):
        with pytest.raises(
            RedisUnavailableError, match="the inbox of task 1: Redis does not answer"
        ):
            call()
    inboxes.close()
    inboxes.close()


def test_an_idle_inbox_takes_little_memory(inboxes_on, server, client):
    inboxes = inboxes_on(server.url)
    inbox = opened(inboxes)
    put(inboxes, 1, parcel(b"x" * 100_000))
    assert commit(inbox, 1, take(inbox))
    inboxes.beat(RUN, {ONE: 1}, {}, "")
    keys = client.keys("tiercel:*:inbox:0}:1:*")
    assert sum(client.memory_usage(key) for key in keys) < 3000


def test_what_waits_for_a_long_call_is_found_beside_large_tuples_of_other_bolts(inboxes_on, server):
    """Their timeouts begin anew while the call runs, or they fail with a timeout."""
    builder = TopologyBuilder("long")
    builder.set_spout("large", Source("n long, body binary"))
    builder.set_spout("small", Source("n long"))
    builder.set_bolt("quick", BasicBolt(), parallelism=16).fields_grouping("large", "n")
    builder.set_bolt("long", BasicBolt(), parallelism=2).fields_grouping("small", "n")
    pump = Pump(builder.build(), inboxes=inboxes_on(server.url))
    pump.feed(*[(n, bytes(MIB)) for n in range(16)], spout="large")
    roots = pump.feed(*[(n,) for n in range(8)], spout="small")
    pump.send()
    found = [
        waiting_roots(pump.inboxes, RUN, pump.topology, task)
        for task in pump.topology.task_ids("long")
    ]
    assert all(found)
    assert set().union(*found) == set(roots)

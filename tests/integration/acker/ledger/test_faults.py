"""Lost replies, flushed scripts, servers that die, stall or forget."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import redis.exceptions

from tests.support.ledgers import NOW, OTHER, ROOT, A, B, C, failure, said, token, updates
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tiercel import RedisRefusedError, RedisUnavailableError
from tiercel.acker.ledger import Applied
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis_ledger import RedisLedger


@pytest.fixture
def proxy(redis_url):
    with Proxy(redis_url) as running:
        yield running


@pytest.fixture
def flaky(proxy, make_spec):
    """A ledger whose replies the proxy can drop."""
    made = RedisLedger(make_spec(urls=(proxy.url,)))
    # Run every script once; otherwise the lost reply could be the one for an unknown script.
    made.register(1, [ROOT, OTHER], [A, B])
    made.apply(token(9), updates({5: A}))
    made.release([5])
    made.reset_timeout([5])
    yield made
    made.close()


@pytest.fixture
def server(redis):
    return redis()


@pytest.fixture
def mortal(server, make_spec):
    """A ledger on its own server."""
    made = RedisLedger(make_spec(urls=(server.url,)))
    yield made
    made.close()


def test_a_registration_whose_reply_was_lost_counts_once(flaky, proxy):
    proxy.lose_next()
    assert flaky.register(1, [3, 4], [A, B]) == []
    assert proxy.lost == 1
    assert flaky.pending() == 4


def test_a_root_without_receivers_whose_reply_was_lost_is_acked_once(flaky, proxy):
    feed = flaky.feed(1)
    proxy.lose_next()
    assert flaky.register(1, [3], [0]) == []
    assert proxy.lost == 1
    assert said(feed.read(NOW)) == {"acked": [3]}
    feed.close()


def test_updates_whose_reply_was_lost_count_once(flaky, proxy):
    feed = flaky.feed(1)
    proxy.lose_next()
    assert flaky.apply(token(), updates({ROOT: A ^ C, OTHER: B})).applied is Applied.REPEATED
    assert proxy.lost == 1
    flaky.apply(token(1), updates({ROOT: C}))
    assert said(feed.read(NOW)) == {"acked": sorted([ROOT, OTHER])}
    feed.close()


def test_steps_whose_replies_were_lost_go_on_in_order(flaky, proxy):
    feed = flaky.feed(1)
    for step, (xor, verdict) in enumerate([(A ^ C, Applied.REPEATED), (C, Applied.REPEATED)]):
        proxy.lose_next()
        assert flaky.apply(token(step=step), updates({ROOT: xor})).applied is verdict
    assert flaky.apply(token(step=0), updates({ROOT: A ^ C})).applied is Applied.STALE
    assert proxy.lost == 2
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    feed.close()


def test_a_run_and_an_attempt_whose_replies_were_lost_are_begun_and_fenced_once(flaky, proxy):
    flaky.begin("a")
    flaky.fence("a", 1, 1)
    proxy.lose_next()
    assert flaky.begin("b")
    proxy.lose_next()
    assert flaky.fence("b", 1, 2)
    assert proxy.lost == 2
    assert flaky.apply(token(1, attempt=1, run="b"), updates({ROOT: A})).applied is Applied.STALE
    assert not flaky.begin("a")


@pytest.mark.parametrize("call", ["fail", "release", "reset_timeout", "forget"])
def test_what_is_said_of_a_root_is_said_once_though_the_reply_was_lost(flaky, proxy, call):
    feed = flaky.feed(1)
    proxy.lose_next()
    getattr(flaky, call)([failure(ROOT)] if call == "fail" else [ROOT])
    assert proxy.lost == 1
    told = said(feed.read(NOW))
    expected = {
        "fail": ["failed"],
        "release": ["released"],
        "reset_timeout": ["reset"],
        "forget": [],
    }
    assert list(told) == expected[call]
    assert {len(found) for found in told.values()} <= ({1, 2} if call == "reset_timeout" else {1})
    assert flaky.pending() == (2 if call == "reset_timeout" else 1)
    feed.close()


def test_outcomes_are_returned_once_though_the_reply_with_them_was_lost(flaky, proxy):
    feed = flaky.feed(1)
    flaky.apply(token(), updates({ROOT: A}))
    proxy.lose_next()
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    assert proxy.lost == 1
    proxy.lose_next()
    assert not feed.read(NOW)
    feed.close()


def test_a_read_that_failed_is_made_up_for_by_the_next(flaky, proxy):
    feed = flaky.feed(1)
    flaky.apply(token(), updates({ROOT: A}))
    proxy.lose_next(100)
    with pytest.raises(RedisUnavailableError, match="check that it runs"):
        feed.read(NOW)
    proxy.lose_next(0)
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    feed.close()


def test_scripts_that_the_server_forgot_are_sent_again(mortal, server):
    feed = mortal.feed(1)
    with connect(server.url) as client:
        for call in (
            lambda: mortal.register(1, [ROOT, OTHER], [A ^ B, C]),
            lambda: mortal.apply(token(), updates({ROOT: A})),
            lambda: mortal.reset_timeout([ROOT]),
            lambda: mortal.release([OTHER]),
            lambda: mortal.apply(token(1), updates({ROOT: B})),
            lambda: mortal.fence("run", 0, 0),
            lambda: mortal.begin("run"),
        ):
            client.script_flush()
            call()
    assert said(feed.read(NOW)) == {"acked": [ROOT], "reset": [ROOT], "released": [OTHER]}
    feed.close()


def test_a_server_that_restarts_empty_is_told_of_once_and_everything_goes_on(mortal, server):
    feed = mortal.feed(1)
    mortal.register(1, [ROOT], [A])
    server.restart(keep_data=False)
    assert feed.read(NOW).ledger_lost
    assert not feed.read(NOW)
    assert mortal.apply(token(), updates({ROOT: A})).late == 1
    mortal.register(1, [OTHER], [B])
    mortal.apply(token(1), updates({OTHER: B}))
    assert said(feed.read(NOW)) == {"acked": [OTHER]}
    server.restart(keep_data=False)
    assert feed.read(NOW).ledger_lost
    feed.close()


def test_a_run_goes_on_on_a_server_that_restarted_empty(mortal, server):
    mortal.begin("old")
    mortal.begin("run")
    mortal.fence("run", 0, 1)
    mortal.register(1, [ROOT], [A])
    server.restart(keep_data=False)
    assert mortal.apply(token(attempt=1, run="old"), updates({ROOT: A})).late == 1
    assert mortal.apply(token(attempt=1), updates({ROOT: A})).late == 1
    mortal.register(1, [OTHER], [B])
    assert mortal.apply(token(step=1, attempt=1), updates({OTHER: B ^ C})).applied is Applied.FRESH
    assert mortal.begin("run")
    assert (
        mortal.apply(token(step=1, attempt=1), updates({OTHER: B ^ C})).applied is Applied.REPEATED
    )
    assert mortal.apply(token(step=2, attempt=1), updates({OTHER: C})).completed == 1


def test_steps_survive_a_restart_with_its_memory(mortal, server):
    mortal.begin("run")
    mortal.register(1, [ROOT], [A])
    mortal.apply(token(attempt=1), updates({ROOT: B}))
    server.restart(keep_data=True)
    assert mortal.apply(token(attempt=1), updates({ROOT: B})).applied is Applied.REPEATED
    assert mortal.apply(token(), updates({ROOT: B})).applied is Applied.STALE
    assert mortal.apply(token(run="old"), updates({ROOT: B})).applied is Applied.STALE


def test_an_outcome_decided_between_a_loss_and_its_discovery_is_returned_once(mortal, server):
    feed = mortal.feed(1)
    server.restart(keep_data=False)
    mortal.register(1, [ROOT], [A])
    mortal.apply(token(), updates({ROOT: A}))
    first, second, third = (feed.read(NOW) for _ in range(3))
    assert first.ledger_lost
    assert [*first.acked, *second.acked, *third.acked] == [ROOT]
    feed.close()


def test_a_server_that_restarts_with_its_memory_has_lost_nothing(mortal, server):
    feed = mortal.feed(1)
    mortal.register(1, [ROOT], [A])
    server.restart(keep_data=True)
    mortal.apply(token(), updates({ROOT: A}))
    outcomes = feed.read(NOW)
    assert said(outcomes) == {"acked": [ROOT]}
    assert not outcomes.ledger_lost
    feed.close()


def test_a_server_that_comes_back_with_an_old_snapshot_has_lost_what_came_after_it(mortal, server):
    feeds = [mortal.feed(owner) for owner in (1, 2)]
    mortal.register(1, [OTHER], [A])
    with connect(server.url) as client:
        client.save()
    assert not any(feed.read(NOW) for feed in feeds)
    mortal.register(1, [ROOT], [A])
    server.kill()
    server.start()
    assert [feed.read(NOW).ledger_lost for feed in feeds] == [True, True], (
        "the other owner's trees have lost updates too"
    )
    assert not any(feed.read(NOW) for feed in feeds * 2)
    mortal.register(1, [ROOT], [A])
    mortal.apply(token(), updates({ROOT: A}))
    assert said(feeds[0].read(NOW)) == {"acked": [ROOT]}
    for feed in feeds:
        feed.close()


def test_a_loss_is_noticed_although_as_many_roots_are_registered_before_the_next_read(
    mortal, server
):
    feeds = [mortal.feed(owner) for owner in (1, 2)]
    with connect(server.url) as client:
        client.save()
    mortal.register(1, [ROOT], [A])
    assert not any(feed.read(NOW) for feed in feeds)
    server.kill()
    server.start()
    mortal.register(1, [OTHER], [A])
    mortal.register(1, [7], [A])
    assert [feed.read(NOW).ledger_lost for feed in feeds] == [True, True]
    mortal.register(1, [OTHER], [A])
    assert not any(feed.read(NOW) for feed in feeds * 2)
    for feed in feeds:
        feed.close()


def test_a_server_that_comes_back_with_a_snapshot_of_everything_has_lost_nothing(mortal, server):
    feed = mortal.feed(1)
    mortal.register(1, [ROOT], [A])
    with connect(server.url) as client:
        client.save()
    assert not feed.read(NOW)
    server.kill()
    server.start()
    mortal.apply(token(), updates({ROOT: A}))
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    assert not feed.read(NOW)
    feed.close()


def test_a_reader_goes_on_deleting_after_a_loss_unless_a_later_one_is_there(mortal, server):
    earlier = mortal.feed(1)
    later = mortal.feed(1)
    server.restart(keep_data=False)
    for number in range(20):
        mortal.register(1, [ROOT + number], [A])
        mortal.apply(token(number), updates({ROOT + number: A}))
    heard: list[int] = []
    for _ in range(4):
        earlier.read(NOW)
        heard += later.read(NOW).acked
    assert heard == [ROOT + number for number in range(20)]
    with connect(server.url) as client:
        assert client.xlen(later._servers[0].shards[0].feed) == 0
    earlier.close()
    later.close()


def test_a_worker_that_follows_another_does_not_take_a_pending_root_for_its_own(make_spec):
    spec = make_spec()
    before = RedisLedger(spec)
    after = RedisLedger(spec)
    assert before.register(1, [ROOT], [A]) == []
    assert before.register(1, [ROOT], [A]) == [], "a repeat"
    assert after.register(1, [ROOT], [A]) == [ROOT]
    before.close()
    after.close()


def test_every_owner_hears_of_a_loss_whoever_looks_first(mortal, server):
    feeds = [mortal.feed(owner) for owner in (1, 2, 3)]
    server.restart(keep_data=False)
    assert [feed.read(NOW).ledger_lost for feed in feeds] == [True] * 3
    assert not any(feed.read(NOW) for feed in feeds * 2)
    for feed in feeds:
        feed.close()


def test_a_new_reader_does_not_look_like_a_loss_to_the_others(ledger):
    first = ledger.feed(1)
    second = ledger.feed(2)
    assert not first.read(NOW)
    assert not second.read(NOW)
    first.close()
    second.close()


def test_a_stream_that_counts_from_below_after_a_loss_is_read_from_its_start(mortal, server):
    feed = mortal.feed(1)
    stream = feed._servers[0].shards[0].feed
    with connect(server.url) as client:
        client.xadd(stream, {b"a": (1).to_bytes(8)}, id="99999999999999-0")
        assert feed.read(NOW).acked == [1]
        client.flushall()
    mortal.register(1, [ROOT, OTHER], [A, B])
    mortal.apply(token(), updates({ROOT: A}))
    assert feed.read(NOW).ledger_lost
    mortal.apply(token(1), updates({OTHER: B}))
    acked = [*feed.read(NOW).acked, *feed.read(NOW).acked]
    assert OTHER in acked
    assert len(acked) == len(set(acked))
    feed.close()


def test_a_stream_that_counts_from_both_sides_of_the_old_position_is_read_whole_and_once(
    mortal, server
):
    feed = mortal.feed(1)
    stream = feed._servers[0].shards[0].feed
    with connect(server.url) as client:
        client.xadd(stream, {b"a": (1).to_bytes(8)}, id="1000-5")
        assert feed.read(NOW).acked == [1]
        assert not feed.read(NOW)
        client.flushall()
        client.xadd(stream, {b"a": (2).to_bytes(8)}, id="1000-1")
        client.xadd(stream, {b"a": (3).to_bytes(8)}, id="1000-9")
    reads = [feed.read(NOW) for _ in range(3)]
    assert [outcomes.ledger_lost for outcomes in reads] == [True, False, False]
    assert [root for outcomes in reads for root in outcomes.acked] == [2, 3]
    feed.close()


def test_while_the_server_is_away_calls_say_so_and_afterwards_they_work(mortal, server):
    feed = mortal.feed(1)
    mortal.register(1, [ROOT], [A])
    server.stop()
    for call in (
        lambda: mortal.register(1, [OTHER], [B]),
        lambda: mortal.apply(token(), updates({ROOT: A})),
        lambda: mortal.release([ROOT]),
        lambda: feed.read(NOW),
        mortal.pending,
    ):
        with pytest.raises(RedisUnavailableError):
            call()
    server.start()
    mortal.apply(token(), updates({ROOT: A}))
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    feed.close()


def test_a_ledger_may_be_opened_while_the_server_is_away(server, make_spec):
    server.stop()
    ledger = RedisLedger(make_spec(urls=(server.url,)))
    with pytest.raises(RedisUnavailableError):
        ledger.feed(1)
    server.start()
    ledger.feed(1).close()
    ledger.close()


def test_a_stalled_server_does_not_hang_a_call(server):
    client = connect(server.url, socket_timeout=timedelta(milliseconds=100))
    client.ping()
    server.pause()
    with pytest.raises(RedisUnavailableError), translated("ping", client):
        client.ping()
    server.resume()
    client.close()


def test_one_server_of_several_that_is_away_does_not_silence_the_others(
    server, redis_url, make_spec
):
    ledger = RedisLedger(make_spec(urls=(redis_url, server.url), shards=2))
    feed = ledger.feed(1)
    acked: list[int] = []
    roots = [high << 40 | 7 for high in range(16)]
    ledger.register(1, roots, [A] * 16)
    server.stop()
    with pytest.raises(RedisUnavailableError):
        ledger.apply(token(), updates(dict.fromkeys(roots, A)))
    acked += feed.read(NOW).acked
    with pytest.raises(RedisUnavailableError):
        feed.read(NOW)
    assert 0 < len(acked) < 16
    server.restart(keep_data=True)
    ledger.apply(token(), updates(dict.fromkeys(roots, A)))
    wait_until(lambda: acked.extend(feed.read(NOW).acked) or len(acked) == 16)
    assert sorted(acked) == roots
    feed.close()
    ledger.close()


def test_a_full_server_registers_no_roots_and_ends_the_trees_that_it_has(mortal, server):
    feed = mortal.feed(1)
    mortal.register(1, [ROOT, OTHER], [A, B])
    with connect(server.url) as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(RedisUnavailableError, match=r"Redis is full .*raise its maxmemory"):
            mortal.register(1, [7], [C])
        assert mortal.apply(token(1), updates({ROOT: A ^ C})).completed == 0
        assert mortal.apply(token(2), updates({ROOT: C})).completed == 1
        assert mortal.apply(token(2), updates({ROOT: C})).applied is Applied.REPEATED
        assert said(feed.read(NOW)) == {"acked": [ROOT]}
        assert mortal.fail([failure(OTHER)]) == 1
        assert len(feed.read(NOW).failed) == 1
        assert mortal.pending() == 0
        client.config_set("maxmemory", 0)
    assert mortal.register(1, [7], [C]) == []
    feed.close()


def test_a_run_begins_on_a_server_that_is_out_of_memory(mortal, server):
    mortal.begin("old")
    mortal.register(1, [ROOT], [A])
    with connect(server.url) as client:
        client.config_set("maxmemory", 1)
        assert mortal.begin("run")
        assert mortal.fence("run", 0, 0)
        client.config_set("maxmemory", 0)
    assert mortal.apply(token(run="old"), updates({ROOT: A})).applied is Applied.STALE
    assert mortal.apply(token(), updates({ROOT: A})).completed == 1


def test_what_a_server_out_of_memory_holds_can_be_given_back(mortal, server):
    feed = mortal.feed(1)
    mortal.register(1, [ROOT, OTHER], [A, B])
    with connect(server.url) as client:
        client.config_set("maxmemory", 1)
    assert mortal.release([ROOT]) == 1
    mortal.forget([OTHER])
    assert said(feed.read(NOW)) == {"released": [ROOT]}
    assert mortal.pending() == 0
    feed.close()


def test_a_primary_that_becomes_a_replica_takes_no_writes_until_it_is_one_again(mortal, server):
    mortal.register(1, [ROOT], [A])
    with connect(server.url) as client:
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(RedisUnavailableError, match="primary"):
            mortal.apply(token(), updates({ROOT: A}))
        client.replicaof("NO", "ONE")
    assert mortal.apply(token(), updates({ROOT: A})).completed == 1


def test_a_new_connection_is_made_when_the_primary_became_a_replica(server, redis, make_spec):
    """The name in the URL leads to the new primary, while the old server keeps its connections."""
    new = redis()
    with connect(new.url) as client:
        client.config_set("requirepass", urlsplit(server.url).password)
    with Proxy(server.url) as name:
        ledger = RedisLedger(make_spec(urls=(name.url,)))
        ledger.register(1, [ROOT], [A])
        with connect(server.url) as client:
            client.replicaof("127.0.0.1", 1)
        name.retarget(new.url, cut=False)
        assert ledger.register(1, [ROOT], [A]) == []
        assert ledger.apply(token(), updates({ROOT: A})).completed == 1
        ledger.close()


@pytest.mark.parametrize("password", ["wr0ng", "x://y:wr0ng"])
def test_a_wrong_password_is_refused_without_being_said(server, make_spec, password):
    _, _, where = server.url.rpartition("@")
    ledger = RedisLedger(
        make_spec(urls=(f"redis://:{password.replace('/', '%2F').replace(':', '%3A')}@{where}",))
    )
    with pytest.raises(RedisRefusedError, match="password") as caught:
        ledger.register(1, [ROOT], [A])
    assert isinstance(caught.value.__cause__, redis.exceptions.AuthenticationError)
    assert "wr0ng" not in str(caught.value)
    assert "wr0ng" not in repr(ledger._spec)
    ledger.close()

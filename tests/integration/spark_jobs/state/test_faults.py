"""Lost replies, interrupted commits, and servers that die or lose data."""

from __future__ import annotations

import pytest

from tests.support.marks import key_of
from tests.support.proxy import Proxy
from tests.support.states import begin, break_off, commit_turn
from tiercel import RedisUnavailableError
from tiercel.acker.effects import perform_in_turn
from tiercel.acker.ledger import Applied
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.pool import Pool
from tiercel.spark_jobs.errors import StaleTurnError, StateLayoutError
from tiercel.spark_jobs.state import redis_shard
from tiercel.spark_jobs.state.redis_shard import StateKeys, Turn
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import Writes

FIELDS = [b"%d" % n for n in range(12)]


# Written by the version before packed records: step 3 is complete, step 4 has made one of two
# calls.
OLD_RUN = {b"run_number": b"1", b"shards": b"1", b"tasks": b"1"}
OLD_TURN = {
    b"attempts": b"2",
    b"turn": b"1 4 2",
    b"logged": b"1 4",
    b"committed": b"1 3",
    b"digest": b"d3",
    b"calls": b"1",
}
OLD_ENTRIES = {b'"a"': b"7", b'"b"': b"-7", b'"z"': b"1", b'"new"': b"-3", b'"p"': b'"put"'}
OLD_UNDO = {b'"a"': b"+2", b'"new"': b"*-3", b'"p"': b"-", b"[1,2]": b'="x"'}
# After the second call, which is the last.
OLD_LAST = (
    {b"committed": b"1 4", b"digest": b"d4", b"calls": b"2"},
    {b'"b"': b"1152921504606846969"},
    {b'"b"': b"+1152921504606846976"},
)
BEFORE_STEP_4 = {b'"a"': b"5", b'"b"': b"-7", b'"z"': b"1", b"[1,2]": b'"x"'}


def adding(amount, fields=FIELDS):
    return Writes(increments=dict.fromkeys(fields, amount))


def now(store):
    return dict(store.entries("count"))


@pytest.fixture
def proxy(redis_url):
    with Proxy(redis_url) as running:
        yield running


@pytest.fixture
def server(redis):
    return redis()


@pytest.fixture
def opened(make_spec):
    """``opened(run_number=…, spec=…)``"""
    made = []

    def make(run_number=1, spec=None):
        made.append(RedisStateStore(spec or make_spec(), run_number))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(redis_shard, "SLICE", 3)


@pytest.mark.parametrize("lost", ["begin", "read", "commit"])
def test_a_call_whose_reply_was_lost_takes_effect_once(proxy, make_spec, opened, lost):
    store = opened(spec=make_spec(urls=(proxy.url,)))
    # Run every script once; otherwise the lost reply could be the one for an unknown script.
    commit_turn(begin(store, "count", 0, 0), adding(1), "d")
    if lost == "begin":
        proxy.lose_next()
    turn = begin(store, "count", 0, 1)
    if lost == "read":
        proxy.lose_next()
    assert turn.read(FIELDS) == [b"1"] * 12
    if lost == "commit":
        proxy.lose_next()
    assert commit_turn(turn, adding(1), "d") is Applied.FRESH
    assert proxy.lost == 1
    assert set(now(store).values()) == {b"2"}


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("calls", range(1, 4))
@pytest.mark.usefixtures("small_slices")
def test_a_commit_that_broke_off_is_taken_back_before_the_next_attempt_reads(
    make_spec, opened, shards, calls
):
    store = opened(spec=make_spec(shards=shards))
    commit_turn(begin(store, "count", 0, 0), Writes(puts=dict.fromkeys(FIELDS, b"1")), "d")
    break_off(
        begin(store, "count", 0, 1),
        Writes(deletes=FIELDS[:4], increments=dict.fromkeys(FIELDS[4:], 1)),
        calls,
    )
    assert set(now(store).values()) != {b"1"} or len(now(store)) < 12
    turn = begin(store, "count", 0, 1)
    assert now(store) == dict.fromkeys(FIELDS, b"1")
    assert turn.committed_digest is None
    # Other work than in the interrupted commit, which has acked nothing.
    assert commit_turn(turn, adding(5, FIELDS[:6]), "other") is Applied.FRESH
    assert now(store) == dict.fromkeys(FIELDS[:6], b"6") | dict.fromkeys(FIELDS[6:], b"1")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("calls", range(1, 4))
@pytest.mark.parametrize("tasks", [None, 1])
@pytest.mark.usefixtures("small_slices")
def test_a_later_run_with_fewer_tasks_takes_back_what_one_that_is_gone_left_half_done(
    make_spec, opened, shards, calls, tasks
):
    spec = make_spec(shards=shards)
    store = opened(1, spec)
    commit_turn(begin(store, "count", 0, 1), adding(1), "d")
    break_off(begin(store, "count", 3, 1), adding(1), calls)
    later = opened(2, spec)
    for _ in range(2):
        later.begin_run("count", tasks)
        assert now(later) == dict.fromkeys(FIELDS, b"1")
    with pytest.raises(StaleTurnError):
        begin(store, "count", 3, 1)
    assert begin(later, "count", 0, 1).read(FIELDS) == [b"1"] * 12
    with pytest.raises(StaleTurnError):
        later.begin_run("count")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.usefixtures("small_slices")
def test_a_later_run_takes_back_what_the_one_before_left_half_done(make_spec, opened, shards):
    spec = make_spec(shards=shards)
    store = opened(1, spec)
    commit_turn(begin(store, "count", 0, 0), adding(1), "d")
    break_off(begin(store, "count", 0, 1), adding(1), 2)
    begin(opened(2, spec), "count", 0, 0)
    assert now(store) == dict.fromkeys(FIELDS, b"1")


@pytest.mark.usefixtures("small_slices")
def test_a_final_commit_is_never_taken_back_by_those_that_come_later(make_spec, opened):
    """Its shards learn only from the home shard that the commit is final."""
    spec = make_spec(shards=3)
    for run_number in (1, 2, 3):
        store = opened(run_number, spec)
        for step in range(3):
            # Some turns begin and end without a commit, in all shards or only in the first.
            begin(store, "count", 0, step)
            store._shards_of("count", 0)[0].begin(
                Turn(run_number=run_number, step=step), "?", []
            ).perform()
            assert commit_turn(begin(store, "count", 0, step), adding(1), "d") is Applied.FRESH
    assert now(store) == dict.fromkeys(FIELDS, b"9")


@pytest.mark.usefixtures("small_slices")
def test_a_commit_that_another_attempt_interrupts_leaves_nothing(make_spec, opened):
    store = opened(spec=make_spec(shards=3))
    [first, *rest] = begin(store, "count", 0, 0).writing(adding(1), "d")
    assert first.perform()
    later = begin(store, "count", 0, 0)
    with pytest.raises(StaleTurnError):
        perform_in_turn(rest)
    assert now(store) == {}
    assert commit_turn(later, adding(2), "d") is Applied.FRESH
    assert now(store) == dict.fromkeys(FIELDS, b"2")


@pytest.mark.parametrize("moment", ["before its writes", "after its writes"])
def test_beginning_that_arrives_a_second_time_takes_nothing_back(make_spec, opened, moment):
    """The repeat is the client's, and was held up on the network."""
    spec = make_spec(shards=2)
    store = opened(spec=spec)
    turn = begin(store, "count", 0, 4)
    if moment == "after its writes":
        commit_turn(turn, adding(1), "d")
    other = store._shards_of("count", 0)[1]
    for committed in ("*", ""):
        assert (
            other.begin(Turn(run_number=1, step=4, attempt=1), committed, []).perform().attempt == 1
        )
    if moment == "before its writes":
        commit_turn(turn, adding(1), "d")
    assert now(store) == dict.fromkeys(FIELDS, b"1")


def test_another_number_of_shards_is_refused_with_what_to_do(make_spec, opened):
    spec = make_spec(shards=1)
    commit_turn(begin(opened(1, spec), "count", 0, 0), adding(1), "d")
    store = opened(2, make_spec(topology=spec.topology, shards=2))
    for task in (0, 1):
        with pytest.raises(
            StateLayoutError, match="written with ackers=1, now it is 2: set ackers=1 again"
        ):
            begin(store, "count", task, 0)
    connect(spec.urls[0]).delete(StateKeys(spec.topology, 0, "count").entries)
    assert commit_turn(begin(store, "count", 0, 0), adding(1), "d") is Applied.FRESH


def test_several_servers_hold_a_share_each(redis_url, server, make_spec, opened):
    spec = make_spec(urls=(redis_url, server.url), shards=3)
    store = opened(spec=spec)
    commit_turn(begin(store, "count", 1, 0), adding(1), "d")
    assert now(store) == dict.fromkeys(FIELDS, b"1")
    with connect(server.url) as client:
        [theirs] = client.keys("*state:count")
        assert theirs.decode() == StateKeys(spec.topology, 1, "count").entries
        assert 0 < client.hlen(theirs) < 12


def test_while_the_server_is_away_every_call_says_so_and_afterwards_the_step_is_repeated(
    server, make_spec, opened
):
    store = opened(spec=make_spec(urls=(server.url,)))
    commit_turn(begin(store, "count", 0, 0), adding(1), "d")
    turn = begin(store, "count", 0, 1)
    server.stop()
    for call in (
        lambda: turn.read(FIELDS),
        lambda: list(turn.scan()),
        lambda: commit_turn(turn, adding(1), "d"),
        lambda: begin(store, "count", 0, 1),
        lambda: now(store),
    ):
        with pytest.raises(RedisUnavailableError):
            call()
    server.restart(keep_data=True)
    assert commit_turn(begin(store, "count", 0, 1), adding(1), "d") is Applied.FRESH
    assert set(now(store).values()) == {b"2"}


def test_a_server_that_forgot_begins_with_nothing(server, make_spec, opened):
    store = opened(spec=make_spec(urls=(server.url,)))
    commit_turn(begin(store, "count", 0, 7), adding(1), "d")
    turn = begin(store, "count", 0, 8)
    server.restart(keep_data=False)
    with pytest.raises(StaleTurnError):
        commit_turn(turn, adding(1), "d")
    assert commit_turn(begin(store, "count", 0, 8), adding(1), "d") is Applied.FRESH
    assert set(now(store).values()) == {b"1"}


def test_a_full_server_takes_what_a_step_writes_so_that_the_step_can_end(server, make_spec, opened):
    store = opened(spec=make_spec(urls=(server.url,)))
    commit_turn(begin(store, "count", 0, 0), adding(1), "d")
    turn = begin(store, "count", 0, 1)
    with connect(server.url) as client:
        client.config_set("maxmemory", 1)
        assert commit_turn(turn, adding(1), "d") is Applied.FRESH
        assert commit_turn(begin(store, "count", 0, 2), adding(1), "d") is Applied.FRESH


def leave_as_the_version_before(spec, *, complete):
    """Write the same bytes as that version's scripts."""
    keys = StateKeys(spec.topology, 0, "count")
    entries, run, turn, undo = keys.of(0)
    with connect(spec.urls[0]) as client:
        client.hset(run, mapping=OLD_RUN)
        client.hset(turn, mapping=OLD_TURN)
        client.hset(entries, mapping=OLD_ENTRIES)
        client.hset(undo, mapping=OLD_UNDO)
        if complete:
            for key, changed in zip((turn, entries, undo), OLD_LAST, strict=True):
                client.hset(key, mapping=changed)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.usefixtures("small_slices")
def test_the_turns_of_tasks_go_with_them(make_spec, opened, shards):
    spec = make_spec(shards=shards)
    store = opened(1, spec)
    for task in range(4):
        commit_turn(begin(store, "count", task, 1), adding(1), "d")
    break_off(begin(store, "count", 3, 2), adding(5), 1)
    opened(2, spec).begin_run("count", 2)

    def tasks_with_a_turn():
        with connect(spec.urls[0]) as client:
            found = client.scan_iter(f"tiercel:{{{spec.topology}:*}}:state-*:count:*")
            return {int(key.rpartition(b":")[2]) for key in found if b"-once:" not in key}

    assert tasks_with_a_turn() == {0, 1}
    later = opened(3, spec)
    later.begin_run("count", 3)
    assert tasks_with_a_turn() == {0, 1}, "no turn is begun for tasks that are gone"
    assert set(now(later).values()) == {b"4"}
    with pytest.raises(StaleTurnError):
        begin(opened(2, spec), "count", 3, 1)


@pytest.mark.parametrize("run_number", [1, 2])
def test_an_upgrade_takes_back_what_the_version_before_left_half_done(
    make_spec, opened, run_number
):
    spec = make_spec()
    leave_as_the_version_before(spec, complete=False)
    store = opened(run_number, spec)
    if run_number == 2:
        store.begin_run("count")
    turn = begin(store, "count", 0, 4)
    assert now(store) == BEFORE_STEP_4
    assert commit_turn(turn, Writes(increments={b'"a"': 1}), "other") is Applied.FRESH
    assert now(store) == BEFORE_STEP_4 | {b'"a"': b"6"}


def test_an_upgrade_reads_through_the_log_of_the_version_before(make_spec, opened):
    spec = make_spec()
    leave_as_the_version_before(spec, complete=True)
    store = opened(1, spec)
    turn = begin(store, "count", 0, 4)
    assert turn.committed_digest == "d4"
    assert turn.read([*BEFORE_STEP_4, b'"new"']) == [*BEFORE_STEP_4.values(), None]
    assert dict(turn.scan()) == BEFORE_STEP_4
    begin(store, "count", 0, 5)
    assert now(store)[b'"b"'] == b"1152921504606846969"


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.usefixtures("small_slices")
def test_a_log_of_packed_records_is_undone_and_unpacked_in_bounded_portions(
    make_spec, opened, shards
):
    spec = make_spec(shards=shards)
    store = opened(spec=spec)
    many = [b"%d" % n for n in range(200)]
    commit_turn(begin(store, "count", 0, 0), adding(1, many[:100]), "d")
    before = dict.fromkeys(many[:100], b"1")
    writing = begin(store, "count", 0, 1).writing(adding(2, many), "broken off")
    for effect in writing[:-1]:
        effect.perform()
    with connect(spec.urls[0]) as client:
        logs = [StateKeys(spec.topology, shard, "count").undo(0) for shard in range(shards)]
        assert sum(client.hlen(log) for log in logs) == len(writing) - 1, "a field per call"
    turn = begin(store, "count", 0, 1)
    assert now(store) == before
    commit_turn(turn, adding(3, many), "d")
    turn = begin(store, "count", 0, 1)
    assert dict(turn.scan()) == before
    assert turn.read(many) == [b"1"] * 100 + [None] * 100
    assert dict.fromkeys(many[:100], b"4") | dict.fromkeys(many[100:], b"3") == now(store)


def size_of(words):
    if isinstance(words, list | tuple):
        return sum(map(size_of, words))
    return len(words) if isinstance(words, bytes) else 0


@pytest.fixture
def sizes(monkeypatch):
    """The sizes of all exchanges with Redis: each holds it up while a script copies them."""
    found = []
    exchange = Pool.exchange

    def noting(pool, commands):
        replies = exchange(pool, commands)
        found.append(max(size_of(commands), size_of(replies)))
        return replies

    monkeypatch.setattr(Pool, "exchange", noting)
    return found


def test_large_values_are_written_read_and_undone_in_calls_of_some_megabytes(
    make_spec, opened, sizes
):
    store = opened(spec=make_spec())
    fields = [b'"%d"' % n for n in range(48)]
    first, second = (dict.fromkeys(fields, letter * 1_000_000) for letter in (b"1", b"2"))
    commit_turn(begin(store, "count", 0, 1), Writes(puts=first), "d")
    turn = begin(store, "count", 0, 2)
    assert turn.read(fields) == [*first.values()]
    break_off(turn, Writes(puts=second), 3)
    turn = store.begin("count", 0, 2, fields).perform()
    assert turn.found == first
    commit_turn(turn, Writes(puts=second), "d")
    turn = store.begin("count", 0, 2, fields).perform()
    assert turn.found == first
    assert dict(turn.scan()) == first
    assert max(sizes) < 21_000_000, "of 48 values, or 96 with those before them"
    assert now(store) == second


def test_marks_with_large_emissions_are_made_and_read_in_calls_of_some_megabytes(
    make_spec, opened, sizes
):
    store = opened(spec=make_spec())
    marks = {key_of(str(n)): bytes(1_000_000) for n in range(12)}
    turn = begin(store, "count", 0, 1)
    commit_turn(turn, Writes(marks=marks), "d")
    assert max(sizes) < 4_200_000
    turn = begin(store, "count", 0, 2)
    assert turn.recall([*marks, key_of("unknown")], 1) == marks
    assert max(sizes) < 6_000_000


@pytest.mark.parametrize("shards", [1, 3])
def test_a_server_that_loses_its_memory_is_noticed_once(server, opened, make_spec, shards):
    spec = make_spec(urls=(server.url,), shards=shards)
    watching, working = opened(spec=spec), opened(spec=spec)
    assert not watching.has_lost("count")
    server.restart(keep_data=False)
    assert not watching.has_lost("count"), "there was no state yet"
    commit_turn(begin(working, "count", 0, 0), adding(1), "d")
    assert not watching.has_lost("count")
    server.restart(keep_data=True)
    assert not watching.has_lost("count")
    server.restart(keep_data=False)
    begin(opened(spec=spec), "count", 0, 1)
    assert watching.has_lost("count"), "although a task has begun anew"
    assert not watching.has_lost("count")
    assert not watching.has_lost("another")

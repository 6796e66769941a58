"""A whole step with a state, with inboxes, state and ledger in Redis: round trips and losses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta

import pytest
from redis.connection import AbstractConnection

from tests.support.emitter import SpoutEmitter
from tests.support.proxy import Proxy
from tests.support.pump import RUN, Source
from tiercel import BasicBolt, Config, StatefulBolt, TopologyBuilder
from tiercel.acker.effects import perform_all
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.contract import Sender, StaleAttemptError
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import inboxes_of, ledger_spec_of

FIRST = 2
LAST = 3


class Count(StatefulBolt):
    output_fields = "word string, n long"

    def execute(self, tup, collector):
        collector.emit([tup["word"], self.state.increment(tup["word"])])


class Pass(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup["word"]])


class Drop(BasicBolt):
    def execute(self, tup, collector):
        pass


class Stage:
    """A bolt, and a last bolt, on inboxes, states and a ledger on these servers, in this thread."""

    def __init__(self, name: str, urls: tuple[str, ...], bolt: BasicBolt, ackers: int) -> None:
        builder = TopologyBuilder(name, Config(ackers=ackers))
        builder.set_spout("spout", Source("word string"))
        builder.set_bolt("count", bolt).fields_grouping("spout", "word")
        builder.set_bolt("drop", Drop()).shuffle_grouping("count")
        topology = builder.build()
        spec = ledger_spec_of(topology, urls)
        self.inboxes = open_inboxes(spec)
        self.ledger = open_ledger(spec)
        self.store = RedisStateStore(spec, run_number=1)
        self.inboxes.adopt(RUN, inboxes_of(topology))
        self.ledger.begin(RUN)
        self._around = Around(
            run=RUN,
            topology=topology,
            inboxes=self.inboxes,
            ledger=self.ledger,
            state=self.store,
            counting=Counting(MemoryMetrics()),
            config={},
            key=b"key",
            suspicion=Suspicion(RUN, None, None),
        )
        self._emitter = SpoutEmitter(topology, "spout", 1)
        self._number = 0
        self._feed = self.ledger.feed(1)
        self.emitted = 0

    def attempt(self, task: int = FIRST) -> Attempt:
        return attempt_at(self._around, task, threading.Event())

    def emit(self, *words: str) -> None:
        self._number += 1
        roots = range(self.emitted + 1, self.emitted + 1 + len(words))
        self.emitted += len(words)
        self._emitter.emit_all([[word] for word in words], list(roots), "default")
        emission = self._emitter.take()
        assert self.ledger.register(1, emission.roots, emission.ack_vals) == []
        sender = Sender(task=1, attempt=1)
        assert perform_all(self.inboxes.append(RUN, sender, self._number, emission.parcels)) == [
            Appended.DONE
        ]

    def busy(self) -> Attempt:
        """An attempt with open connections, whose scripts the servers know."""
        attempt = self.attempt()
        for words in (["warm"], ["warm"], ["warm"] * 2):
            self.emit(*words)
            work(attempt, size=1)
        return attempt

    def counts(self) -> dict[str, int]:
        return {decode_key(field): decode_value(raw) for field, raw in self.store.entries("count")}

    def end(self) -> None:
        """Let successors finish the work: each tuple is acked, and none failed."""
        for task in (FIRST, LAST):
            attempt = self.attempt(task)
            attempt.recover()
            work(attempt)
        acked: list[int] = []
        while len(acked) < self.emitted:
            outcomes = self._feed.read(timedelta(seconds=5))
            assert not outcomes.failed
            assert outcomes.acked
            acked += outcomes.acked
        assert sorted(acked) == list(range(1, self.emitted + 1))

    def close(self) -> None:
        for part in (self._feed, self.inboxes, self.ledger, self.store):
            part.close()


def in_steps_of(attempt: Attempt, size: int) -> None:
    """Let the attempt take all waiting tuples, and execute this many per step."""
    slices = attempt._slices
    slices.wanted = lambda waiting: 0 if waiting else 1000
    slices.ended = lambda *_, **__: None
    slices.size = size


def work(attempt: Attempt, size: int = 1000) -> None:
    in_steps_of(attempt, size)
    while attempt.turn():
        continue


@pytest.fixture
def stage(make_spec) -> Iterator[Callable[..., Stage]]:
    """``stage(*urls, ackers=…, bolt=…)``"""
    made: list[Stage] = []

    def make(*urls: str, ackers: int = 1, bolt: BasicBolt | None = None) -> Stage:
        made.append(Stage(make_spec().topology, urls, bolt or Count(), ackers))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def trips(monkeypatch) -> list[int]:
    """One item per write to any server."""
    sent: list[int] = []
    send = AbstractConnection.send_packed_command

    def counted(self, *args, **kwargs):
        sent.append(1)
        return send(self, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    return sent


@pytest.mark.parametrize(("ackers", "most"), [(1, 3), (3, 4)])
def test_a_step_with_a_state_is_two_round_trips_and_one_to_read_and_one_per_shard(
    redis_url, stage, trips, ackers, most
):
    """Finish, take and begin; begin in other shards; read, unless the value is known; commit."""
    on = stage(redis_url, ackers=ackers)
    attempt = on.busy()
    for word, expected in (("one", most), ("two", most), ("two", most - 1)):
        on.emit(word)
        trips.clear()
        assert attempt.turn()
        assert len(trips) == expected
    assert on.counts() == {"warm": 4, "one": 1, "two": 2}
    on.end()


def test_a_step_that_needs_not_take_is_two_round_trips(redis_url, stage, trips):
    """The trips are: finish, begin and read; commit."""
    on = stage(redis_url)
    attempt = on.busy()
    on.emit("one", "two")
    assert attempt.turn()
    trips.clear()
    assert attempt.turn()
    assert len(trips) == 2
    assert on.counts() == {"warm": 4, "one": 1, "two": 1}
    on.end()


def test_a_step_without_a_state_is_two_round_trips_to_its_server(redis_url, stage, trips):
    on = stage(redis_url, bolt=Pass())
    attempt = on.busy()
    on.emit("one")
    trips.clear()
    assert attempt.turn()
    assert len(trips) == 2
    on.end()


@pytest.mark.parametrize("ackers", [1, 2, 3])
def test_on_several_servers_each_step_counts_once(redis_url, redis, stage, ackers):
    on = stage(redis_url, redis().url, ackers=ackers)
    attempt = on.busy()
    on.emit(*"abcabc")
    work(attempt, size=2)
    assert on.counts() == {"warm": 4, "a": 2, "b": 2, "c": 2}
    on.end()


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_does_not_begin_where_another_attempt_has_the_inbox(
    redis_url, redis, stage, number
):
    """That attempt repeats the earlier step, and would be refused if the state had gone on."""
    on = stage(*[redis_url, redis().url][:number], ackers=number)
    old = on.busy()
    on.emit("one", "two")
    assert old.turn()
    successor = on.attempt()
    with pytest.raises(StaleAttemptError):
        old.turn()
    successor.recover()
    work(successor)
    assert on.counts() == {"warm": 4, "one": 1, "two": 1}
    on.end()


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_is_not_written_where_the_step_could_not_be_sealed(redis_url, redis, stage, number):
    on = stage(*[redis_url, redis().url][:number], ackers=number)
    old = on.busy()
    on.emit("one")
    take = old._inbox.take
    successors = []

    def take_and_be_taken_over(*args, **options):
        taken = take(*args, **options)
        successors.append(on.attempt())
        return taken

    old._inbox.take = take_and_be_taken_over
    with pytest.raises(StaleAttemptError):
        old.turn()
    assert on.counts() == {"warm": 4}
    work(successors[0])
    assert on.counts() == {"warm": 4, "one": 1}
    on.end()


@pytest.mark.parametrize("lost", range(5))
def test_a_reply_that_is_lost_anywhere_changes_nothing(redis_url, stage, trips, monkeypatch, lost):
    """The client repeats everything that it sent together."""
    with Proxy(redis_url) as proxy:
        on = stage(proxy.url)
        attempt = on.busy()
        on.emit("one", "two")
        trips.clear()
        send = AbstractConnection.send_packed_command

        def losing(self, *args, **kwargs):
            if len(trips) == lost and not proxy.lost:
                proxy.lose_next()
            return send(self, *args, **kwargs)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", losing)
        # Take and begin, read, commit; begin, commit.
        assert attempt.turn()
        assert attempt.turn()
        assert proxy.lost == 1
        assert on.counts() == {"warm": 4, "one": 1, "two": 1}
        on.end()


def between_two_steps(stage, server):
    """Return an attempt that has executed the first of two tuples."""
    on = stage(server.url)
    attempt = on.busy()
    on.emit("one", "two")
    assert attempt.turn()
    return on, attempt


def test_scripts_that_the_server_forgot_take_effect_in_their_order(redis, stage):
    server = redis()
    on, attempt = between_two_steps(stage, server)
    with closing(connect(server.url)) as client:
        client.script_flush()
    assert attempt.turn()
    assert on.counts() == {"warm": 4, "one": 1, "two": 1}
    on.end()

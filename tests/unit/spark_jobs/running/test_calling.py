"""Attempts with calls under way: what they begin, what a step covers, what the next step gets."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.inbox_cluster import RUN, InboxCluster, at_work
from tests.support.pump import Source, killed_after
from tests.support.reasons import unplaced
from tests.support.waiting import wait_until
from tiercel import AsyncBolt, BasicBolt, Topology, TopologyBuilder
from tiercel.acker.inbox.chunk import decode
from tiercel.spark_jobs.kinds.calling import Calls
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.attempt import Plain
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.suspects.book import REASON

FIRST = 2
LAST = 3


class Held:
    """Words that calls wait for, and a record of the calls."""

    def __init__(self) -> None:
        self.free: set[str] = set()
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.most = 0
        self.now = 0
        self.lock = threading.Lock()

    def enter(self, word: str) -> None:
        with self.lock:
            self.began.append(word)
            self.now += 1
            self.most = max(self.most, self.now)

    def leave(self) -> None:
        with self.lock:
            self.now -= 1

    def lets(self, word: str) -> bool:
        return "all" in self.free or word in self.free


class Waiting(AsyncBolt):
    """Emits a word once the test releases it."""

    output_fields = "word string"
    held: ClassVar[Held]

    async def execute(self, tup, collector):
        word = tup["word"]
        self.held.enter(word)
        try:
            while not self.held.lets(word):  # noqa: ASYNC110 - another thread lets it
                await asyncio.sleep(0.001)
            collector.emit([word])
        except asyncio.CancelledError:
            self.held.cancelled.append(word)
            raise
        finally:
            self.held.leave()


class Blocking(BasicBolt):
    output_fields = "word string"
    held: ClassVar[Held]

    def execute(self, tup, collector):
        self.held.enter(tup["word"])
        while not self.held.lets(tup["word"]):
            time.sleep(0.001)
        self.held.leave()
        collector.emit([tup["word"]])


class Ignore(BasicBolt):
    def execute(self, tup, collector):
        pass


@pytest.fixture
def held() -> Iterator[Held]:
    Waiting.held = Blocking.held = Held()
    yield Waiting.held
    Waiting.held.free.add("all")


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as exits:
        yield exits


def topology(bolt: Any = None, **config: Any) -> Topology:
    builder = TopologyBuilder("calls")
    builder.set_spout("spout", Source("word string"))
    builder.set_bolt("first", bolt or Waiting(), config=config).shuffle_grouping("spout")
    builder.set_bolt("last", Ignore()).shuffle_grouping("first")
    return builder.build()


both = pytest.mark.parametrize(
    ("bolt", "config"),
    [(Waiting(), {"concurrency": 4}), (Blocking(), {"threads": 4})],
    ids=["coroutines", "threads"],
)


def words_in(cluster: InboxCluster, task: int) -> list[str]:
    """Return the words waiting in an inbox without taking them."""
    found = dict(cluster.inboxes.drain(RUN))
    chunks = [decode(entry.payload) for entry in found.get(task, [])]
    return [word for chunk in chunks for word in chunk.values.column(0).to_pylist()]


@both
def test_a_call_that_lasts_holds_no_other_one_up_and_each_is_acked_on_its_own(
    held: Held, bolt: Any, config: dict[str, Any]
) -> None:
    held.free |= {"b", "c", "d"}
    with at_work(topology(bolt, **config)) as cluster:
        roots = cluster.emit([["a"], ["b"], ["c"], ["d"]])
        acked = set()
        wait_until(lambda: acked.update(cluster.outcomes().acked) or len(acked) == 3)
        assert acked == set(roots[1:])
        held.free.add("a")
        wait_until(lambda: acked.update(cluster.outcomes().acked) or len(acked) == 4)
        # An inbox forgets committed tuples when the task next looks into it.
        wait_until(lambda: cluster.inboxes.figures([FIRST, LAST])[FIRST].tuples == 0)


@both
def test_no_more_are_under_way_than_there_are_places_and_a_free_place_is_taken(
    held: Held, bolt: Any, config: dict[str, Any]
) -> None:
    with at_work(topology(bolt, **config)) as cluster:
        cluster.emit([[str(number)] for number in range(9)])
        wait_until(lambda: held.now == 4)
        assert held.began == ["0", "1", "2", "3"], "in the order of arrival"
        held.free.add("2")
        wait_until(lambda: held.began[4:] == ["4"])
        held.free.add("all")
        acked: set[int] = set()
        wait_until(lambda: acked.update(cluster.outcomes().acked) or len(acked) == 9)
        assert held.most == 4


def test_the_set_of_a_step_are_the_calls_that_have_ended(held: Held, closing: ExitStack) -> None:
    cluster = InboxCluster(topology())
    cluster.emit([["a"], ["b"], ["c"]])
    attempt = cluster.attempt(FIRST)
    closing.callback(attempt.close)
    held.free |= {"a", "c"}
    wait_until(lambda: attempt.turn(0.01) is not None and len(words_in(cluster, LAST)) == 2)
    assert sorted(words_in(cluster, LAST)) == ["a", "c"]
    held.free.add("b")
    wait_until(lambda: attempt.turn(0.01) is not None and len(words_in(cluster, LAST)) == 3)
    assert cluster.ledger.pending() == 3, "the last bolt has them"


def test_at_the_end_calls_are_cancelled_and_their_tuples_stay_for_the_next_attempt(
    held: Held, closing: ExitStack
) -> None:
    held.free.add("done")
    with at_work(topology()) as cluster:
        roots = cluster.emit([["one"], ["two"], ["done"]])
        wait_until(lambda: cluster.outcomes().acked == [roots[2]])
        wait_until(lambda: held.now == 2)
    assert sorted(held.cancelled) == ["one", "two"]
    assert not cluster.outcomes()
    assert cluster.ledger.pending() == 2
    held.free.add("all")
    again = cluster.attempt(FIRST)
    closing.callback(again.close)
    wait_until(lambda: again.turn(0.01) is not None and len(words_in(cluster, LAST)) == 2)
    assert sorted(words_in(cluster, LAST)) == ["one", "two"]


@pytest.mark.parametrize("effects", range(6))
def test_a_process_that_dies_anywhere_in_a_commit_is_repeated_and_counts_once(
    held: Held, closing: ExitStack, effects: int
) -> None:
    held.free.add("all")
    cluster = InboxCluster(topology())
    roots = cluster.emit([["a"], ["b"], ["c"]])
    with killed_after(effects):
        doomed = cluster.attempt(FIRST)
        closing.callback(doomed.close)
        for _ in range(20):
            doomed.turn(0.001)
    successor = cluster.attempt(FIRST)
    closing.callback(successor.close)
    wait_until(
        lambda: not successor.turn(0.001) and cluster.inboxes.figures([FIRST])[FIRST].tuples == 0
    )
    assert sorted(words_in(cluster, LAST)) == ["a", "b", "c"]
    last = cluster.attempt(LAST)
    cluster.work({LAST: last})
    assert sorted(cluster.outcomes().acked) == sorted(roots)
    assert cluster.ledger.pending() == 0


def test_a_repeated_step_has_its_tuples_in_the_order_of_the_inbox(held: Held) -> None:
    """This holds even if the step covers part of one entry and all of a later one."""
    repeated: list[str] = []
    while len(repeated) < 2:  # the first call may end, and its step begin, alone
        held.began.clear()
        held.free = {"b", "c"}
        repeated = repeated_by_a_successor(held)
        held.free.add("all")
    assert repeated == ["b", "c"]


def repeated_by_a_successor(held: Held) -> list[str]:
    """Kill a process while it commits the released words of a, b and c; return the repeats."""
    cluster = InboxCluster(topology())
    cluster.emit([["a"], ["b"]])
    cluster.emit([["c"]])
    with ExitStack() as closing:
        with killed_after(1):
            doomed = cluster.attempt(FIRST)
            closing.callback(doomed.close)
            while held.began != ["a", "b", "c"] or held.now > 1:
                doomed.turn(0.0)
            wait_until(lambda: doomed.turn(0.0))
        held.began.clear()
        successor = cluster.attempt(FIRST)
        closing.callback(successor.close)
        return list(held.began)


def test_after_one_death_what_was_under_way_is_under_way_at_once_again(
    held: Held, closing: ExitStack
) -> None:
    cluster = InboxCluster(topology())
    cluster.emit([[str(number)] for number in range(20)])
    doomed = cluster.attempt(FIRST)
    closing.callback(doomed.close)
    doomed.turn(0.01)
    wait_until(lambda: held.now == 20)
    held.began.clear()
    successor = cluster.attempt(FIRST)
    closing.callback(successor.close)
    working = threading.Thread(target=successor.turn)
    working.start()
    wait_until(lambda: len(held.began) == 20)
    held.free.add("all")
    working.join(10)
    assert sorted(words_in(cluster, LAST)) == sorted(str(number) for number in range(20))


class Unprepared(Waiting):
    faults: ClassVar[int]

    async def prepare(self, config, context):
        Unprepared.faults -= 1
        if Unprepared.faults >= 0:
            raise OSError("no disk")


def test_what_prepare_raises_fails_what_waits_and_the_next_time_it_is_tried_again(
    held: Held, closing: ExitStack
) -> None:
    held.free.add("all")
    Unprepared.faults = 1
    cluster = InboxCluster(topology(Unprepared()))
    roots = cluster.emit([["a"], ["b"]])
    attempt = cluster.attempt(FIRST)
    closing.callback(attempt.close)
    assert attempt.turn()
    failed = cluster.outcomes().failed
    assert {failure.root: unplaced(failure.reason) for failure in failed} == dict.fromkeys(
        roots, "prepare: OSError: no disk"
    )
    cluster.emit([["c"]])
    wait_until(lambda: attempt.turn(0.01) is not None and words_in(cluster, LAST) == ["c"])


def test_what_is_retaken_after_a_death_is_prepared_for_again_too(
    held: Held, closing: ExitStack
) -> None:
    Unprepared.faults = 0
    cluster = InboxCluster(topology(Unprepared(), concurrency=1))
    cluster.emit([["a"], ["b"], ["c"]])
    doomed = cluster.attempt(FIRST)
    closing.callback(doomed.close)
    doomed.turn(0.01)
    held.free.add("all")
    Unprepared.faults = 1
    successor = cluster.attempt(FIRST)
    closing.callback(successor.close)
    wait_until(lambda: successor.turn(0.01) is not None and len(words_in(cluster, LAST)) == 2)
    assert [unplaced(failure.reason) for failure in cluster.outcomes().failed] == [
        "prepare: OSError: no disk"
    ]


class Ticked(AsyncBolt):
    output_fields = "word string"

    async def execute(self, tup, collector):
        if tup.is_tick:
            await asyncio.sleep(0.01)
        collector.emit(["tick" if tup.is_tick else tup["word"]])


def test_a_tick_is_a_call_and_the_next_one_waits_for_it(closing: ExitStack) -> None:
    cluster = InboxCluster(topology(Ticked(), tick_tuple_freq_secs=10))
    cluster.set_clock(0)
    attempt = cluster.attempt(FIRST)
    closing.callback(attempt.close)
    cluster.set_clock(35)
    wait_until(lambda: attempt.turn(0.01) is not None and words_in(cluster, LAST) == ["tick"])
    for _ in range(5):
        attempt.turn(0.001)
    assert words_in(cluster, LAST) == ["tick"]
    cluster.set_clock(40)
    wait_until(lambda: attempt.turn(0.01) is not None and len(words_in(cluster, LAST)) == 2)


class Stubborn(Waiting):
    """Swallows its cancellation."""

    async def execute(self, tup, collector):
        while not self.held.lets(tup["word"]):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.held.cancelled.append(tup["word"])


def test_a_call_that_takes_too_long_is_cancelled_and_fails_and_a_stubborn_one_is_named(
    held: Held,
    closing: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tiercel.spark_jobs.running.around._SHORTEST_HANG_S", 0.05)
    monkeypatch.setattr("tiercel.spark_jobs.kinds.calls.coroutines._SWALLOWED_S", 0.05)
    builder = TopologyBuilder("slow")
    builder.set_spout("spout", Source("word string"))
    builder.set_bolt("polite", Waiting()).shuffle_grouping("spout")
    builder.set_bolt("stubborn", Stubborn()).shuffle_grouping("spout")
    made = builder.build()
    object.__setattr__(made.config, "message_timeout_secs", 0.05)
    cluster = InboxCluster(made)
    [root] = cluster.emit([["slow"]])
    polite, stubborn = cluster.attempt(2), cluster.attempt(3)
    for attempt in (polite, stubborn):
        closing.callback(attempt.close)
        attempt.turn(0.01)
    wait_until(lambda: stubborn.executing() is not None)
    work = stubborn.executing()
    assert work is not None
    assert work.record.doing is not None
    assert work.roots(work.record.doing.row) == [root]
    assert stubborn.executing() is work, "the watchdog compares"
    wait_until(lambda: polite.turn(0.01))
    assert polite.executing() is None
    [failure] = cluster.outcomes().failed
    assert failure.reason == "TimeoutError: took longer than 0.05 s in execute"
    wait_until(lambda: "let CancelledError pass" in caplog.text)
    assert "stubborn: a call for Tuple(spout:default, word='slow') goes on" in caplog.text
    assert held.cancelled == ["slow", "slow"]
    held.free.add("slow")
    wait_until(lambda: stubborn.executing() is None)


def test_the_watchdog_sees_the_thread_that_has_been_in_its_call_for_longest(
    held: Held, closing: ExitStack
) -> None:
    cluster = InboxCluster(topology(Blocking(), threads=2))
    roots = cluster.emit([["a"], ["b"]])
    attempt = cluster.attempt(FIRST)
    closing.callback(attempt.close)
    attempt.turn(0.01)
    wait_until(lambda: held.now == 2)
    work = attempt.executing()
    assert work is not None
    assert work.record.doing is not None
    assert work.roots(work.record.doing.row) == [roots[0]]
    held.free.add("all")


class Died(KeyboardInterrupt):
    """A process that dies."""


class DeadlyBook(MemoryCaseBook):
    """A dead process writes nothing."""

    alive = True

    def note(self, token, doing):
        if self.alive:
            super().note(token, doing)


class Deadly(AsyncBolt):
    output_fields = "word string"
    book: ClassVar[DeadlyBook]
    executed: ClassVar[list[str]] = []
    # Calls at once: now, at most, and the number that each call waits for.
    now = most = together = 0

    async def execute(self, tup, collector):
        self.executed.append(tup["word"])
        Deadly.now += 1
        Deadly.most = max(Deadly.most, Deadly.now)
        await asyncio.sleep(0)
        while Deadly.most < Deadly.together:  # noqa: ASYNC110 - each process has its own loop
            await asyncio.sleep(0)
        Deadly.now -= 1
        if tup["word"] == "kills":
            self.book.alive = False
            raise Died
        collector.emit([tup["word"]])


def test_a_tuple_that_kills_is_found_and_its_neighbours_are_acked(closing: ExitStack) -> None:
    cluster = InboxCluster(topology(Deadly()))
    book = Deadly.book = DeadlyBook()
    cluster.emit([["a"], ["kills"], ["b"], ["c"]])

    def process(together: int) -> tuple[list[str], int]:
        """Run the process once; return what it executed, and how many tuples at once."""
        Deadly.executed.clear()
        Deadly.now = Deadly.most = 0
        Deadly.together = together
        book.alive = True
        suspicion = Suspicion(RUN, book, cluster.ledger)
        cluster.around = replace(cluster.around, suspicion=suspicion)
        attempt = cluster.attempt(FIRST)
        with suppress(Died):
            wait_until(lambda: not attempt.turn(0.01) and len(words_in(cluster, LAST)) == 3)
        attempt.close()
        return sorted(Deadly.executed), Deadly.most

    assert process(4) == (["a", "b", "c", "kills"], 4), "one death may have any cause"
    assert process(4) == (["a", "b", "c", "kills"], 4), "again, noted as one piece of work"
    assert process(1) == (["a", "kills"], 1), "one by one"
    assert process(1) == (["kills"], 1), "alone"
    assert process(3) == (["a", "b", "c"], 3), "without it"
    [failure] = cluster.outcomes().failed
    assert failure.reason == REASON
    assert sorted(words_in(cluster, LAST)) == ["a", "b", "c"]


class Sleepy(Waiting):
    async def execute(self, tup, collector):
        time.sleep(1.5)  # noqa: ASYNC251 - that is the fault


def test_a_bolt_that_blocks_the_loop_is_named_with_its_line(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with at_work(topology(Sleepy())) as cluster:
        cluster.emit([["a"], ["b"]])
        wait_until(lambda: "blocks the event loop" in caplog.text)
        [said] = [one for one in caplog.messages if "blocks the event loop" in one]
        assert said.startswith("first blocks the event loop of its process")
        assert f"{__file__}, line" in said
        assert "in execute" in said
        acked: set[int] = set()
        wait_until(lambda: acked.update(cluster.outcomes().acked) or len(acked) == 2)
    assert len([one for one in caplog.messages if "blocks the event loop" in one]) == 1
    assert not held.began


def test_a_bolt_that_executes_one_after_the_other_has_a_plain_attempt_and_no_loop(
    closing: ExitStack,
) -> None:
    cluster = InboxCluster(topology())
    calling = attempt_at(cluster.around, FIRST, threading.Event())
    plain = attempt_at(cluster.around, LAST, threading.Event())
    closing.callback(calling.close)
    closing.callback(plain.close)
    assert (type(calling.kind), type(plain.kind)) == (Calls, Plain)
    calling.close()
    with pytest.raises(RuntimeError, match="the event loop is not running"):
        cluster.around.loop.soon(print)

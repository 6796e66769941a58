"""Answers from threads, between steps and late: each belongs to its tuple, whichever step runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pump import Pump, Source, killed_after
from tests.support.waiting import wait_until
from tiercel import BasicBolt, Bolt, TopologyBuilder
from tiercel.spark_jobs.errors import AlreadyAckedError, ForeignTupleError, UnknownStreamError
from tiercel.spark_jobs.running.copy import body_of, held_roots, thread_roots

ANSWER = "its task began anew while the bolt, or a thread of it, had the tuple"


class Handed(Bolt):
    """Hands each tuple to the test, or to a thread that answers."""

    output_fields = "text string"
    hand: Callable[[Any, Any], None]

    def execute(self, tup, collector):
        self.hand(tup, collector)


class Store(BasicBolt):
    stored: list[str]

    def execute(self, tup, collector):
        if tup["text"].startswith("bad"):
            raise ValueError("refused")
        self.stored.append(tup["text"])


def bench(hand: Callable[[Any, Any], None]) -> tuple[Pump, list[str]]:
    stored: list[str] = []
    builder = TopologyBuilder("answers")
    builder.set_spout("spout", Source())
    handed = type("HandedHere", (Handed,), {"hand": staticmethod(hand)})()
    builder.set_bolt("handed", handed).shuffle_grouping("spout")
    store = type("StoreHere", (Store,), {"stored": stored})()
    builder.set_bolt("store", store).shuffle_grouping("handed")
    return Pump(builder.build()), stored


def held_by_the_test() -> tuple[Pump, list[str], dict[str, Any], list[Any]]:
    tuples: dict[str, Any] = {}
    collectors: list[Any] = []

    def hand(tup, collector):
        tuples[tup["word"]] = tup
        collectors.append(collector)

    pump, stored = bench(hand)
    return pump, stored, tuples, collectors


def test_an_answer_between_two_steps_leaves_with_the_next():
    pump, stored, tuples, collectors = held_by_the_test()
    [root] = pump.feed(["a"])
    pump.run()
    assert (pump.acked, stored) == ([], [])
    assert collectors[0].emit(["A"], tuples["a"]) == []
    collectors[0].ack(tuples["a"])
    pump.run()
    assert (pump.acked, stored) == ([root], ["A"])


def test_an_answer_is_anchored_to_its_own_tuple_whatever_step_runs_meanwhile():
    pump, stored, tuples, collectors = held_by_the_test()
    roots = dict(zip("abc", pump.feed(["a"], ["b"], ["c"]), strict=True))
    pump.run()
    collectors[0].emit(["bad b"], tuples["b"])
    collectors[0].ack(tuples["b"])
    collectors[0].emit(["C"], tuples["c"])
    collectors[0].ack(tuples["c"])
    pump.feed(["d"])
    pump.run()
    assert pump.acked == [roots["c"]]
    assert list(pump.failed) == [roots["b"]]
    assert stored == ["C"]
    assert pump.ledger.pending() == 2


def test_an_answer_to_a_tuple_that_is_done_is_a_clear_error_in_its_thread():
    pump, _, tuples, collectors = held_by_the_test()
    pump.feed(["a"], ["b"])
    pump.run()
    collectors[0].ack(tuples["a"])
    with pytest.raises(AlreadyAckedError, match="acked before"):
        collectors[0].ack(tuples["a"])
    with pytest.raises(AlreadyAckedError, match="anchors to"):
        collectors[0].emit(["late"], tuples["a"])
    pump.run()
    with pytest.raises(AlreadyAckedError, match="fails"):
        collectors[0].fail(tuples["a"], "too late")
    with pytest.raises(ForeignTupleError, match="no tuple"):
        collectors[0].ack("a")
    with pytest.raises(UnknownStreamError):
        collectors[0].emit(["x"], tuples["b"], stream="nowhere")


def test_an_answer_after_the_task_was_started_again_is_refused_and_the_message_fails():
    pump, stored, tuples, collectors = held_by_the_test()
    [root] = pump.feed(["a"])
    pump.run()
    old, collector = tuples["a"], collectors[0]
    pump.attempts[2].close()
    pump.take_over()
    with pytest.raises(ForeignTupleError, match="started again"):
        collector.ack(old)
    pump.run()
    assert pump.failed == {root: f"handed: {ANSWER}"}
    assert (pump.acked, stored) == ([], [])


def test_a_tuple_that_nothing_refers_to_is_forgotten_and_said():
    pump, _, tuples, _ = held_by_the_test()
    pump.feed(["a"])
    pump.run()
    assert len(pump.attempts[2]._setup.copy.held.tuples) == 1
    tuples.clear()
    pump.feed(["b"])
    pump.run()
    [error] = pump.metrics.errors(10)
    assert error.message.startswith("1 tuples were neither acked nor failed")


def test_the_next_run_releases_what_threads_of_the_last_one_held():
    pump, _, tuples, _ = held_by_the_test()
    roots = pump.feed(["a"], ["b"])
    pump.run()
    assert len(tuples) == 2
    [(_, snapshot)] = [found for found in pump.snapshots() if found[0] == 2]
    assert held_roots(body_of(snapshot)) == thread_roots(body_of(snapshot)) == sorted(roots)


def test_a_flush_that_raises_takes_the_answers_of_its_step_back():
    tuples: list[Any] = []
    collectors: list[Any] = []

    class Flushing(Bolt):
        output_fields = "text string"

        def execute(self, tup, collector):
            tuples.append(tup)
            collectors.append(collector)

        def flush(self, collector):
            if len(tuples) == 2:
                raise ConnectionError("gone")

    builder = TopologyBuilder("flushing")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Flushing()).shuffle_grouping("spout")
    pump = Pump(builder.build())
    first = pump.feed(["a"])
    pump.run()
    collectors[0].ack(tuples[0])
    second = pump.feed(["b"])
    pump.run()
    assert pump.acked == []
    assert pump.failed == {
        second[0]: "bolt: flush: ConnectionError: gone",
        first[0]: f"bolt: {ANSWER}",
    }


@given(seed=st.integers(0, 2**32), deaths=st.booleans())
def test_random_answers_and_deaths_never_ack_what_was_not_stored(seed: int, deaths: bool) -> None:
    """A message is acked only if the output of its own attempt was stored, or it has none."""
    chance = random.Random(seed)
    waiting: list[tuple[Any, Any]] = []
    pump, stored = bench(lambda tup, collector: waiting.append((tup, collector)))
    words: dict[int, str] = {}
    for number in range(chance.randint(2, 12)):
        word = f"{number}-{chance.choice(['emits', 'bad', 'fails'])}"
        [root] = pump.feed([word])
        words[root] = word
        pump.send()
        for _ in range(chance.randint(0, 3)):
            _answer(chance, waiting)
        if deaths and chance.random() < 0.3:
            with killed_after(chance.randint(0, 6)):
                pump.work()
            pump.take_over(chance.choice([2, 3]))
        else:
            pump.work()
    while waiting:
        _answer(chance, waiting)
        pump.work()
    pump.run()
    for root in pump.acked:
        assert "-emits" in words[root], (seed, words[root])
        assert words[root] in stored, (seed, words[root])
    # Without a death every tree has its outcome.
    if not deaths:
        assert pump.ledger.pending() == 0
        assert len(pump.acked) + len(pump.failed) == len(words)


def _answer(chance: random.Random, waiting: list[tuple[Any, Any]]) -> None:
    """Answer one of the tuples from a thread, if its task still has it."""
    if not waiting:
        return
    tup, collector = waiting.pop(chance.randrange(len(waiting)))
    word = tup["word"]

    def answer() -> None:
        try:
            if word.endswith("fails"):
                collector.fail(tup, "no")
            else:
                collector.emit([("bad " if word.endswith("bad") else "") + word], tup)
                collector.ack(tup)
        except ForeignTupleError:
            pass

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()


def test_a_pool_that_answers_while_steps_run_has_each_message_acked_once_with_its_output():
    with ThreadPoolExecutor(8) as pool:

        def work(tup, collector):
            collector.emit([tup["word"]], tup)
            collector.ack(tup)

        pump, stored = bench(lambda tup, collector: pool.submit(work, tup, collector))
        roots = []
        for batch in range(40):
            roots += pump.feed(*([f"{batch} {each}"] for each in range(25)))
            pump.run()

        def done() -> bool:
            pump.run()
            return len(pump.acked) == len(roots)

        wait_until(done, 30)
    assert sorted(pump.acked) == sorted(roots)
    assert len(stored) == len(set(stored)) == len(roots)

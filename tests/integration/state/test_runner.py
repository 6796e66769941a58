"""Retries of whole Spark tasks with a stateful bolt: what is counted, what is acked, over every store."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest

from acker import LedgerUnavailableError, MemoryLedger
from examples.word_count import SplitSentence
from spark_jobs import StatefulBolt, Topology, TopologyBuilder
from spark_jobs.state.encoding import decode_key, decode_value
from tests.pump import Pump, Source

LINES = [[f"the falcon {number % 5} and the tiercel"] for number in range(40)]


class Count(StatefulBolt):
    """Emits the running count, by get and put: an attempt that saw an earlier one's writes would emit other numbers."""

    output_fields = "word string, n long"
    flaky: ClassVar[set[str]] = set()
    """Words that fail, for as long as they stand here."""

    def execute(self, tup, collector):
        count = self.state.get(tup["word"], 0) + 1
        self.state.put(tup["word"], count)
        self.state.increment(("total",))
        collector.emit([tup["word"], count])
        if tup["word"] in self.flaky:
            raise RuntimeError("flaky")


class Last(StatefulBolt):
    """As Count, and nothing comes after it: its acks end the trees at once."""

    def execute(self, tup, collector):
        self.state.increment(tup["word"])
        if tup["word"] in Count.flaky:
            raise RuntimeError("flaky")


def word_count(count: StatefulBolt) -> Topology:
    builder = TopologyBuilder("word-count")
    builder.set_spout("spout", Source("sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("spout")
    builder.set_bolt("count", count, parallelism=4).fields_grouping("split", "word")
    return builder.build()


@pytest.fixture(autouse=True)
def _steady():
    Count.flaky.clear()


def counts(pump: Pump) -> dict:
    return {decode_key(field): decode_value(raw) for field, raw in pump.state.entries("count")}


def expected(*lines) -> dict:
    return dict(Counter(word for [line] in lines for word in line.split()))


class Dies:
    """A ledger that is gone at its next calls of apply, before or after they took effect."""

    def __init__(self, ledger: MemoryLedger, times: int, *, after: bool):
        self._ledger, self._times, self._after = ledger, times, after
        self.reset_timeout, self.fail = ledger.reset_timeout, ledger.fail

    def apply(self, *args):
        self._times -= 1
        if self._times < 0:
            return self._ledger.apply(*args)
        if self._after:
            self._ledger.apply(*args)
        raise LedgerUnavailableError("gone")


def test_a_task_that_is_repeated_after_all_was_done_counts_once_and_emits_the_same(run):
    pump = Pump(word_count(Count()), state=run(1))
    for start in range(0, 40, 10):
        roots = pump.feed(*LINES[start : start + 10])
        rows = pump.level(1, pump.take())
        once, again, shuffled = pump.level(2, rows), pump.level(2, rows), pump.level(2, rows, lambda chunks: chunks[::-1])
        assert once == again
        assert len(shuffled) == len(once)
        pump.batch += 1
        pump.read()
        assert set(roots) <= set(pump.acked)
    found = counts(pump)
    assert found.pop(("total",)) == 240
    assert found == expected(*LINES)


@pytest.mark.parametrize("after", [False, True], ids=["before the ledger heard", "after the ledger heard"])
@pytest.mark.parametrize("fresh_process", [False, True])
def test_a_task_that_dies_between_its_state_and_its_acks_counts_once(run, after, fresh_process):
    pump = Pump(word_count(Last()), state=run(1))
    roots = pump.feed(*LINES)
    rows = pump.level(1, pump.take())
    pump.runners[1]._ledger = Dies(pump.ledger, 2, after=after)
    for _ in range(2):
        with pytest.raises(LedgerUnavailableError):
            pump.level(2, rows)
    if fresh_process:
        pump.runners[1] = pump.runner(2)
    pump.level(2, rows)
    pump.read()
    assert counts(pump) == expected(*LINES)
    assert sorted(pump.acked) == sorted(roots)


def test_a_repeated_task_that_does_other_work_loses_nothing_of_what_was_acked(run):
    """The first attempt has ended the trees: were the second's work to replace it, their words would never be counted."""
    pump = Pump(word_count(Last()), state=run(1))
    roots = pump.feed(*LINES)
    rows = pump.level(1, pump.take())
    pump.level(2, rows)
    Count.flaky.add("falcon")
    pump.level(2, rows)
    pump.read()
    assert sorted(pump.acked) == sorted(roots)
    assert counts(pump) == expected(*LINES)


def test_a_repeated_task_that_does_other_work_before_the_ledger_heard_fails_its_trees(run):
    """Whether the first attempt's acks left cannot be known: its counts stay, and the messages are delivered again."""
    pump = Pump(word_count(Last()), state=run(1), max_lanes=1)
    roots = pump.feed(*LINES)
    rows = pump.level(1, pump.take())
    pump.runners[1]._ledger = Dies(pump.ledger, 1, after=False)
    with pytest.raises(LedgerUnavailableError):
        pump.level(2, rows)
    Count.flaky.add("falcon")
    pump.level(2, rows)
    pump.read()
    assert pump.failed == dict.fromkeys(roots, "__acker: a retried task did other work")
    assert counts(pump) == expected(*LINES)


def test_an_attempt_that_never_wrote_its_state_leaves_the_next_one_free(run):
    store = run(1)
    pump = Pump(word_count(Last()), state=store)
    pump.feed(*LINES)
    rows = pump.level(1, pump.take())
    begin = store.begin

    def begin_and_die(*args):
        begin(*args)
        raise LedgerUnavailableError("gone")

    store.begin = begin_and_die
    with pytest.raises(LedgerUnavailableError):
        pump.level(2, rows)
    store.begin = begin
    Count.flaky.add("falcon")
    pump.level(2, rows)
    pump.read()
    assert len(pump.failed) == 40
    found = expected(*LINES)
    del found["falcon"]
    assert counts(pump) == found


def test_a_later_run_with_other_parallelism_goes_on_counting(run):
    pump = Pump(word_count(Last()), state=run(1))
    pump.feed(*LINES[:20])
    pump.run()
    builder = TopologyBuilder("word-count")
    builder.set_spout("spout", Source("sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=1).shuffle_grouping("spout")
    builder.set_bolt("count", Last(), parallelism=3).fields_grouping("split", "word")
    pump = Pump(builder.build(), state=run(2))
    pump.feed(*LINES[20:])
    pump.run()
    assert counts(pump) == expected(*LINES)

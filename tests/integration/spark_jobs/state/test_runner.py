"""Repeated steps of a stateful bolt over every store: what is counted, and what is acked."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import ClassVar

import pytest

from tests.support.pump import Pump, Source, killed_after, killed_in
from tiercel import RedisUnavailableError, StatefulBolt, Topology, TopologyBuilder
from tiercel.acker.effects import LocalEffect
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.acker.inbox.memory import MemoryInbox
from tiercel.acker.memory import MemoryLedger
from tiercel.examples.word_count import SplitSentence
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.state.encoding import decode_key, decode_value

LINES = [[f"the falcon {number % 5} and the tiercel"] for number in range(40)]


class Count(StatefulBolt):
    """Emits the running count, by get and put: an attempt that saw an earlier attempt's writes
    would emit other numbers.
    """

    output_fields = "word string, n long"
    # Words that fail, as long as they are in this set.
    flaky: ClassVar[set[str]] = set()

    def execute(self, tup, collector):
        count = self.state.get(tup["word"], 0) + 1
        self.state.put(tup["word"], count)
        self.state.increment(("total",))
        collector.emit([tup["word"], count])
        if tup["word"] in self.flaky:
            raise RuntimeError("flaky")


class Last(StatefulBolt):
    """Like Count, but the last bolt: its acks end the trees at once."""

    def execute(self, tup, collector):
        self.state.increment(tup["word"])
        if tup["word"] in Count.flaky:
            raise RuntimeError("flaky")


def word_count(count: StatefulBolt, counters: int = 4) -> Topology:
    builder = TopologyBuilder("word-count")
    builder.set_spout("spout", Source("sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("spout")
    builder.set_bolt("count", count, parallelism=counters).fields_grouping("split", "word")
    return builder.build()


@pytest.fixture(autouse=True)
def _steady():
    Count.flaky.clear()


def counts(pump: Pump) -> dict:
    return {decode_key(field): decode_value(raw) for field, raw in pump.state.entries("count")}


def expected(*lines) -> dict:
    return dict(Counter(word for [line] in lines for word in line.split()))


# Begin, seal, up to three writes, the ledger, finish; the last case kills nothing.
EFFECTS = [(effects, deaths) for effects in range(8) for deaths in (1, 2)]


def counting_tasks(pump: Pump) -> list[int]:
    return list(pump.topology.task_ids("count"))


def fed(pump: Pump, lines: int = len(LINES)) -> list[int]:
    """Feed these lines, and let the words reach the inboxes of the counting tasks."""
    roots = pump.feed(*LINES[:lines])
    pump.work_at("split")
    return roots


def test_a_step_that_is_repeated_after_all_was_done_counts_once_and_emits_the_same(run):
    pump = Pump(word_count(Count()), state=run(1))
    for start in range(0, 40, 10):
        roots = pump.feed(*LINES[start : start + 10])
        pump.work_at("split")
        for task in counting_tasks(pump):
            # Sealed and written, with the acks in the ledger; but the inbox still has its tuples.
            with killed_in(MemoryInbox, "_finish"):
                pump.work(task)
        pump.take_over()
        pump.run()
        assert set(roots) <= set(pump.acked)
    assert not pump.failed
    found = counts(pump)
    assert found.pop(("total",)) == 240
    assert found == expected(*LINES)


def ends_well(pump, roots):
    """Let a successor take over; then each tuple has counted once and is acked."""
    pump.take_over()
    pump.run()
    assert counts(pump) == expected(*LINES)
    assert sorted(pump.acked) == sorted(roots)
    assert not pump.failed


@pytest.mark.parametrize(("effects", "deaths"), EFFECTS)
def test_a_process_that_dies_anywhere_around_its_state_counts_once(run, effects, deaths):
    pump = Pump(word_count(Last()), state=run(1))
    roots = fed(pump)
    for task in counting_tasks(pump):
        with killed_after(effects):
            pump.work(task)
        for _ in range(deaths - 1):
            with killed_after(effects):
                pump.take_over(task)
    ends_well(pump, roots)


@pytest.mark.parametrize("effects", range(16))
def test_a_process_that_dies_anywhere_around_steps_that_follow_each_other_counts_once(run, effects):
    """The first step is finished together with the begin of the second, whose tuples were taken
    with the first one's.
    """
    pump = Pump(word_count(Last(), counters=1), state=run(1))
    roots = fed(pump)
    [task] = counting_tasks(pump)
    with killed_after(effects):
        pump.work(task)
    ends_well(pump, roots)


def test_a_state_does_not_begin_with_a_step_where_the_one_before_was_taken_over(run):
    """A successor would repeat the earlier step, and be refused if the state had gone on."""
    pump = Pump(word_count(Last(), counters=1), state=run(1))
    roots = fed(pump)
    [task] = counting_tasks(pump)
    old = pump.attempts[task]
    assert old.turn()
    pump.attempts[task] = attempt_at(pump.around, task, threading.Event())
    with pytest.raises(StaleAttemptError):
        old.turn()
    pump.attempts[task].recover()
    pump.run()
    assert counts(pump) == expected(*LINES)
    assert sorted(pump.acked) == sorted(roots)


def test_a_state_is_not_written_where_the_step_could_not_be_sealed(run):
    pump = Pump(word_count(Last(), counters=1), state=run(1))
    roots = fed(pump)
    [task] = counting_tasks(pump)
    old = pump.attempts[task]
    take = old._inbox.take

    def take_and_be_taken_over(*args, **options):
        taken = take(*args, **options)
        pump.attempts[task] = attempt_at(pump.around, task, threading.Event())
        return taken

    old._inbox.take = take_and_be_taken_over
    with pytest.raises(StaleAttemptError):
        old.turn()
    assert counts(pump) == {}
    pump.run()
    assert counts(pump) == expected(*LINES)
    assert sorted(pump.acked) == sorted(roots)


def test_a_repeated_step_that_does_other_work_loses_nothing_of_what_was_acked(run):
    """The first attempt has ended the trees: if the second attempt's work replaced it, their words
    would never be counted.
    """
    pump = Pump(word_count(Last()), state=run(1))
    roots = fed(pump, 10)
    for task in counting_tasks(pump):
        with killed_in(MemoryInbox, "_finish"):
            pump.work(task)
    Count.flaky.add("falcon")
    pump.take_over()
    pump.run()
    assert sorted(pump.acked) == sorted(roots)
    assert counts(pump) == expected(*LINES[:10])


def test_a_repeated_step_that_does_other_work_before_the_ledger_heard_fails_its_trees(run):
    """The first attempt's acks may or may not have left: its counts stay, and the messages are
    redelivered.
    """
    pump = Pump(word_count(Last(), counters=1), state=run(1))
    roots = fed(pump, 10)
    with killed_in(MemoryLedger, "_apply"):
        pump.work(*counting_tasks(pump))
    Count.flaky.add("falcon")
    pump.take_over()
    pump.run()
    assert pump.failed == dict.fromkeys(roots, "__acker: a repeated step did other work")
    assert counts(pump) == expected(*LINES[:10])


def test_an_attempt_that_never_wrote_its_state_leaves_the_next_one_free(run):
    pump = Pump(word_count(Last()), state=run(1))
    fed(pump)
    for task in counting_tasks(pump):
        # Begun and sealed.
        with killed_after(2):
            pump.work(task)
    Count.flaky.add("falcon")
    pump.take_over()
    pump.run()
    assert len(pump.failed) == 40
    found = expected(*LINES)
    del found["falcon"]
    assert counts(pump) == found


def test_a_state_that_does_not_answer_as_tuples_are_taken_is_asked_again(run):
    store = run(1)
    pump = Pump(word_count(Last()), state=store)
    roots = fed(pump)
    begin = store.begin
    silent = [2]

    def begin_or_fail(effect):
        begun = effect.perform()
        if silent[0]:
            silent[0] -= 1
            raise RedisUnavailableError("gone")
        return begun

    store.begin = lambda *args: LocalEffect(partial(begin_or_fail, begin(*args)))
    pump.run()
    assert silent == [0]
    assert sorted(pump.acked) == sorted(roots)
    assert counts(pump) == expected(*LINES)


def test_a_state_that_does_not_answer_has_its_step_repeated_by_another_attempt(run, monkeypatch):
    """The step has had no effect yet, so it is taken again."""
    monkeypatch.setattr(TaskStates, "ahead", lambda *_: None)
    store = run(1)
    pump = Pump(word_count(Last()), state=store)
    roots = fed(pump)
    begin = store.begin

    def begin_and_fail(effect):
        effect.perform()
        raise RedisUnavailableError("gone")

    store.begin = lambda *args: LocalEffect(partial(begin_and_fail, begin(*args)))
    with pytest.raises(RedisUnavailableError):
        pump.work(*counting_tasks(pump))
    store.begin = begin
    pump.take_over()
    pump.run()
    assert sorted(pump.acked) == sorted(roots)
    assert counts(pump) == expected(*LINES)


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

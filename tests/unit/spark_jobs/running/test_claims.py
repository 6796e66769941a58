"""A task's claims from the line of its bolt, and the tuples that it gives back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

import pytest

from tests.support.pump import Pump, Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, TopologyBuilder
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ids import line_of
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.acker.inbox.memory import MemoryInbox
from tiercel.spark_jobs.errors import TurnAgainError

LINE = line_of([2, 3])


class Long(BasicBolt):
    """Blocks in the tuple "long" until the test releases it."""

    may_end: ClassVar[threading.Event]
    is_long: ClassVar[threading.Event]
    executed: ClassVar[list[tuple[int, str]]]

    def prepare(self, config, context):
        self.task = context.task_id

    def execute(self, tup, collector):
        if tup[0] == "long":
            Long.is_long.set()
            assert Long.may_end.wait(30)
        Long.executed.append((self.task, tup[0]))


@pytest.fixture
def pump() -> Iterator[Pump]:
    Long.may_end, Long.is_long, Long.executed = threading.Event(), threading.Event(), []
    builder = TopologyBuilder("long")
    builder.set_spout("words", Source("word string"))
    builder.set_bolt("long", Long(), parallelism=2).shuffle_grouping("words")
    made = Pump(builder.build())
    made.take_over()
    # All tuples were quick so far, so the task claims many at once.
    made.feed(*([f"quick {number}"] for number in range(600)))
    made.run()
    Long.executed.clear()
    yield made
    Long.may_end.set()


def until(pump: Pump, inbox: int, tuples: int) -> None:
    """Check for a long call, as the process's own thread does, until the inbox has this many
    tuples.
    """

    def looked() -> bool:
        pump.now += 1.0
        pump.attempts[2].give_back()
        return pump.inboxes.figures([inbox])[inbox].tuples == tuples

    wait_until(looked, 10, "what waits behind the call went back")


def fed(pump: Pump, *words: str) -> list[int]:
    roots = pump.feed(*([word] for word in words))
    pump.send()
    return roots


def beside(pump: Pump, task: int) -> threading.Thread:
    """Let a task work in its own thread until it is in its long tuple."""

    def work() -> None:
        with suppress(StaleAttemptError, TurnAgainError):
            pump.work(task)

    thread = threading.Thread(target=work)
    thread.start()
    assert Long.is_long.wait(10)
    return thread


def test_what_waits_behind_a_call_that_lasts_goes_to_the_others_and_nothing_is_done_twice(
    pump: Pump,
) -> None:
    before = len(pump.acked)
    roots = fed(pump, "first", "long", "a", "b", "c", "d")
    at_work = beside(pump, 2)
    until(pump, LINE, 4)
    pump.work(3)
    assert Long.executed == [(2, "first"), *((3, word) for word in "abcd")]
    Long.may_end.set()
    at_work.join(30)
    pump.run()
    assert Long.executed[5:] == [(2, "long")]
    assert sorted(pump.acked[before:]) == sorted(roots)
    assert not pump.failed
    assert pump.inboxes.figures([2, 3, LINE])[2].tuples == 0


def test_what_came_in_another_parcel_goes_back_whole(pump: Pump) -> None:
    fed(pump, "long")
    fed(pump, "a", "b")
    at_work = beside(pump, 2)
    until(pump, 2, 1)
    pump.work(3)
    assert Long.executed == [(3, "a"), (3, "b")]
    Long.may_end.set()
    at_work.join(30)


def test_a_process_that_dies_after_it_gave_tuples_back_repeats_its_own_alone(pump: Pump) -> None:
    before = len(pump.acked)
    roots = fed(pump, "first", "long", "a", "b")
    at_work = beside(pump, 2)
    until(pump, LINE, 2)
    # Another process has the task: this attempt is cut off and commits nothing more.
    Long.may_end.set()
    newer = pump.inboxes.draw(pump.around.run, 2)
    pump.inboxes.open(pump.around.run, 2, newer, LINE)
    at_work.join(30)
    pump.work(3)
    pump.take_over(2)
    pump.run()
    assert sorted(word for _, word in Long.executed) == [
        "a", "b", "first", "first", "long", "long",
    ]  # fmt: skip
    assert sorted(pump.acked[before:]) == sorted(roots)


def test_where_it_is_not_known_what_went_back_a_new_attempt_looks(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(pump.acked)
    roots = fed(pump, "long", "a", "b")
    at_work = beside(pump, 2)
    give = MemoryInbox._give_back
    lost = []

    def and_the_reply_is_lost(self, rests):
        give(self, rests)
        lost.append(rests)
        raise RedisUnavailableError("the reply is lost")

    monkeypatch.setattr(MemoryInbox, "_give_back", and_the_reply_is_lost)
    pump.now += 1.0
    wait_until(lambda: pump.attempts[2].give_back() or lost, 10, "it was tried")
    monkeypatch.undo()
    Long.may_end.set()
    at_work.join(30)
    pump.take_over(2)
    pump.run()
    assert sorted(pump.acked[before:]) == sorted(roots)
    assert times("a") == times("b") == 1


def times(word: str) -> int:
    return sum(one == word for _, one in Long.executed)


class Pass(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


@pytest.mark.parametrize("tasks", [2, 40])
def test_a_step_appends_once_to_a_line_however_many_tasks_take_from_it(
    tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Long.executed = []
    builder = TopologyBuilder("wide")
    builder.set_spout("words", Source("word string"))
    builder.set_bolt("pass", Pass(), parallelism=1).shuffle_grouping("words")
    builder.set_bolt("work", Long(), parallelism=tasks).shuffle_grouping("pass")
    pump = Pump(builder.build())
    [passing] = pump.topology.task_ids("pass")
    appended = []
    append = pump.inboxes.append

    def noted(run, sender, number, parcels):
        if sender.task == passing:
            appended.append((number, [(parcel.target, sum(parcel.tuples)) for parcel in parcels]))
        return append(run, sender, number, parcels)

    monkeypatch.setattr(pump.inboxes, "append", noted)
    fed(pump, *(str(number) for number in range(50)))
    pump.run()
    line = line_of(pump.topology.task_ids("work"))
    assert appended == [(1, [(line, 50)])]
    assert len(Long.executed) == 50

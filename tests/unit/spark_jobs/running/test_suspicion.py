"""After a process died: what its successor records, which tuples are tried alone, and what a
neighbour's death costs.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.pump import Pump, Source, killed_after
from tests.support.waiting import wait_until
from tiercel import ArrowBolt, BasicBolt, TopologyBuilder
from tiercel.spark_jobs.running.suspicion import Turns, place
from tiercel.spark_jobs.suspects.book import Case, Suspect


class Died(KeyboardInterrupt):
    """A process that dies."""


class Book(MemoryCaseBook):
    """Counts the records. A dead process writes nothing."""

    alive = True

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Suspect | None] = []

    def note(self, token, doing):
        if self.alive:
            self.notes.append(doing)
            super().note(token, doing)


class Deadly(BasicBolt):
    book: ClassVar[Book]
    executed: ClassVar[list[str]] = []
    kills: ClassVar[set[str]] = set()

    def execute(self, tup, collector):
        self.executed.append(tup["word"])
        if tup["word"] in self.kills:
            self.book.alive = False
            raise Died


@pytest.fixture
def pump() -> Pump:
    Deadly.book = Book()
    Deadly.executed.clear()
    Deadly.kills.clear()
    return pumped(Deadly())


def pumped(bolt: BasicBolt | ArrowBolt) -> Pump:
    builder = TopologyBuilder("t")
    builder.set_spout("spout", Source())
    builder.set_bolt("deadly", bolt, 2).fields_grouping("spout", "word")
    return Pump(builder.build(), book=Deadly.book)


def dies(pump: Pump, *tasks: int) -> None:
    with pytest.raises(Died):
        pump.work(*tasks)


def reborn(pump: Pump) -> None:
    pump.book.alive = True
    pump.take_over()


def homes(pump: Pump, *words: str) -> dict[str, int]:
    """Return the task that receives each of these words."""
    found = {}
    for word in words:
        pump.feed([word])
        pump.send()
        [found[word]] = [task for task in pump.tasks if pump.inboxes.figures([task])[task].tuples]
        pump.run()
    Deadly.executed.clear()
    return found


def words_of_both(pump: Pump) -> tuple[str, str]:
    """Return a word for each of the two tasks."""
    found = homes(pump, *(f"w{number}" for number in range(12)))
    return next(word for word, task in found.items() if task == 2), next(
        w for w, task in found.items() if task == 3
    )


def test_a_process_that_nothing_died_before_notes_nothing(pump: Pump) -> None:
    pump.feed(*([str(number)] for number in range(100)))
    pump.run()
    assert pump.book.notes == []


def test_what_was_taken_is_noted_and_what_comes_later_is_not(pump: Pump) -> None:
    here, there = words_of_both(pump)
    Deadly.kills.add(here)
    pump.feed([here], [there])
    pump.send()
    dies(pump, 2)
    reborn(pump)
    Deadly.kills.clear()
    pump.run()
    assert [note.seed is not None for note in pump.book.notes if note is not None] == [
        True,
        False,
    ], "the tuple, the flush"
    pump.book.notes.clear()
    pump.feed([here], [here])
    pump.run()
    assert pump.book.notes == []


def test_a_neighbour_that_dies_with_a_killer_is_tried_alone_and_not_blamed(pump: Pump) -> None:
    """Both tasks are executing each time the process dies.

    The innocent task comes first, so that it could be blamed.
    """
    here, there = words_of_both(pump)
    roots = pump.feed([here], [there])
    pump.send()
    Deadly.kills |= {here, there}
    dies(pump, 2)
    pump.book.alive = True
    dies(pump, 3)
    reborn(pump)
    # The second process dies of task 3's tuple, while task 2 is in the middle of its own.
    dies(pump, 2)
    pump.book.alive = True
    dies(pump, 3)
    reborn(pump)
    Deadly.kills.remove(here)
    pump.work(2)
    dies(pump, 3)
    reborn(pump)
    pump.run()
    assert pump.acked[-1:] == roots[:1]
    assert pump.failed.keys() == {roots[1]}


def both_are_suspects(pump: Pump) -> None:
    """Let a process die, and the next one while it executes a tuple of each task."""
    here, there = words_of_both(pump)
    pump.feed([here], [there])
    pump.send()
    Deadly.kills |= {here, there}
    for _ in range(2):
        dies(pump, 2)
        pump.book.alive = True
        dies(pump, 3)
        reborn(pump)
    Deadly.kills.clear()


def test_suspects_of_two_tasks_are_never_executed_at_once(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_are_suspects(pump)
    inside: list[str] = []
    most: list[int] = []

    def execute(self: Deadly, tup: Any, collector: Any) -> None:
        inside.append(tup["word"])
        # Long enough for the other thread to enter, if it could.
        threading.Event().wait(0.2)
        most.append(len(inside))
        inside.remove(tup["word"])

    monkeypatch.setattr(Deadly, "execute", execute)
    threads = [threading.Thread(target=pump.work, args=(task,)) for task in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1, 1]
    pump.read()
    assert not pump.failed


def test_slow_tuples_that_are_suspected_are_acked_one_by_one(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = words_of_both(pump)
    Deadly.kills.add(here)
    pump.feed(*([here] for _ in range(5)))
    pump.send()
    dies(pump, 2)
    reborn(pump)

    def execute(self: Deadly, tup: Any, collector: Any) -> None:
        pump.now += 1.0

    monkeypatch.setattr(Deadly, "execute", execute)
    before = pump.ledger.pending()
    left = []
    while pump.attempts[2].turn():
        left.append(before - pump.ledger.pending())
    assert left == [1, 2, 3, 4, 5]


def test_another_attempt_in_the_same_process_is_not_another_death(pump: Pump) -> None:
    """For example because Redis was away in the middle of a step."""
    here, _ = words_of_both(pump)
    Deadly.kills.add(here)
    [root] = pump.feed([here])
    pump.send()
    dies(pump, 2)
    reborn(pump)
    for _ in range(3):
        suspicion = pump.around.suspicion
        dies(pump, 2)
        pump.book.alive = True
        pump.take_over(2)
        pump.around = replace(pump.around, suspicion=suspicion)
        opened = pump.attempts[2]._inbox.opened
        pump.attempts[2].retaken = suspicion.of(2, opened)
    pump.read()
    assert root not in pump.failed


def test_a_tuple_that_kills_when_its_sealed_step_is_repeated_fails_with_that_step_and_no_other(
    pump: Pump,
) -> None:
    here, _ = words_of_both(pump)
    roots = pump.feed([here], [here])
    pump.send()
    with killed_after(1):
        pump.work(2)
    Deadly.kills.add(here)
    deaths = 0
    while deaths < 10:
        pump.book.alive = True
        try:
            pump.take_over(2)
        except Died:
            deaths += 1
        else:
            break
    assert deaths == 2
    Deadly.kills.clear()
    pump.run()
    assert pump.failed.keys() == set(roots)
    later = pump.feed([here])
    pump.run()
    assert pump.acked[-1:] == later


def test_positions_are_compared_as_numbers() -> None:
    assert place("9-0") < place("10-0") < place("10-1") < place("10-12")


def test_of_a_run_of_months_the_latest_suspects_are_kept() -> None:
    case = Case()
    for seed in range(300):
        case = Case(
            doing=Suspect(component="bolt", task=2, seed=seed), suspects=case.suspects
        ).after_death()
    assert [each.seed for each in case.suspects] == list(range(200, 300))


def test_who_is_alone_waits_for_the_others_and_keeps_new_ones_out() -> None:
    turns = Turns()
    order: list[str] = []
    leave = threading.Event()
    first = threading.Event()

    def together(name: str, until: threading.Event | None = None) -> None:
        with turns.together():
            order.append(name)
            first.set()
            if until is not None:
                until.wait(10)

    def alone() -> None:
        with turns.alone():
            order.append("alone")

    threads = [threading.Thread(target=together, args=("first", leave))]
    threads[0].start()
    assert first.wait(10)
    threads.append(threading.Thread(target=alone))
    threads[-1].start()
    wait_until(lambda: turns._waiting == 1, 10)
    threads.append(threading.Thread(target=together, args=("late",)))
    threads[-1].start()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert order == ["first", "alone", "late"]

"""Blame for dying Python processes, decided from the traces that attempts at a task left."""

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.pump import Pump, Source
from tiercel import ArrowBolt, BasicBolt, Bolt, TopologyBuilder
from tiercel.spark_jobs.running.backlog import waiting_roots

ATTEMPTS = 10


class Died(KeyboardInterrupt):
    """A process that dies."""


class Diary(MemoryCaseBook):
    """A dead process writes nothing, not even in ``finally``."""

    alive = True
    last_words = None

    def note(self, token, doing):
        if self.alive:
            super().note(token, doing)


class Deadly(BasicBolt):
    output_fields = ""
    executed: list[str] = []  # noqa: RUF012 - of all processes, as the tests look at it
    deaths = {"killer": 99}  # noqa: RUF012 - word to how often it kills
    diary = Diary()

    def prepare(self, config, context):
        self.lines = []

    def execute(self, tup, collector):
        self.executed.append(tup["word"])
        self.live(tup["word"])
        self.lines.append(tup["word"])

    def flush(self, collector):
        for word in self.lines:
            self.live(f"{word} in flush")
        self.lines = []

    def live(self, word):
        if self.deaths.get(word, 0):
            self.deaths[word] -= 1
            if self.diary.last_words:
                self.diary.last_words()
            self.diary.alive = False
            raise Died


class ByHand(Bolt):
    output_fields = ""

    def execute(self, tup, collector):
        Deadly.live(self, tup["word"])
        collector.ack(tup)

    deaths = Deadly.deaths
    diary = Deadly.diary


class InBatches(ArrowBolt):
    output_fields = ""
    deaths = Deadly.deaths
    diary = Deadly.diary

    def execute(self, batch, collector):
        for word in batch.column("word").to_pylist():
            Deadly.live(self, word)


def impatient(pump, task=2):
    """Let a watchdog take the next death for the end of a long wait."""
    lookout = pump.around.suspicion.lookout(task, lambda: pump.attempts[task].doing)
    Deadly.diary.last_words = lambda: lookout.hung(lookout.doing(), 30)


@pytest.fixture
def deaths():
    Deadly.diary.last_words = None
    Deadly.diary.forget()
    Deadly.executed.clear()
    Deadly.deaths.clear()
    return Deadly.deaths


def pump(*words, bolt=Deadly, tracked=True, copies=1):
    builder = TopologyBuilder("t")
    builder.set_spout("s", Source())
    builder.set_bolt("deadly", bolt(), parallelism=copies).all_grouping("s")
    made = Pump(builder.build(), book=Deadly.diary)
    made.roots = dict(
        zip(words, made.feed(*([word] for word in words), tracked=tracked), strict=True)
    )
    return made


def attempts(pump, most=ATTEMPTS):
    """Run all tasks in one process after the other until one has nothing left; return how many
    died.
    """
    pump.send()
    for attempt in range(most):
        pump.book.alive = True
        try:
            if attempt:
                pump.take_over()
            pump.work()
        except Died:
            continue
        pump.read()
        return attempt
    return most


def names(pump, roots):
    return {word for word, root in pump.roots.items() if root in roots}


@pytest.mark.parametrize("bolt", [Deadly, ByHand, InBatches])
def test_the_tuple_that_kills_fails_and_its_neighbours_are_acked(deaths, bolt):
    deaths["killer"] = 99
    one = pump("a", "killer", "b", bolt=bolt)
    assert attempts(one) == 3
    assert names(one, one.failed) == {"killer"}
    assert (
        one.failed[one.roots["killer"]]
        == "deadly: the Python process died while it executed this tuple, 2 times in a row"
    )
    assert names(one, one.acked) == {"a", "b"}


def test_what_waits_behind_a_tuple_that_lasts_has_its_timeout_anew_once(deaths):
    """Their own timeouts would expire together with that tuple's and count as failures; after
    three, a tuple is dead-lettered.
    """
    deaths["slow"] = 1
    one = pump("a", "slow", "b")
    inboxes = one.around.inboxes
    run = one.around.run
    lookout = one.around.suspicion.lookout(
        2,
        lambda: one.attempts[2].doing,
        lambda: waiting_roots(inboxes, run, one.around.topology, 2),
    )

    def half_of_the_limit_and_again():
        lookout.lasts(lookout.doing())
        lookout.lasts(lookout.doing())

    Deadly.diary.last_words = half_of_the_limit_and_again
    attempts(one)
    assert sorted(one.reset) == sorted([one.roots["a"], one.roots["b"]])


def test_a_process_that_is_killed_once_costs_nobody_a_delivery(deaths):
    deaths["b"] = 1
    one = pump("a", "b", "c")
    assert attempts(one) == 1
    assert not one.failed
    assert names(one, one.acked) == {"a", "b", "c"}


def test_processes_that_are_killed_over_different_tuples_cost_nobody_a_delivery(deaths):
    deaths |= {"a": 2, "b": 1, "c": 1}
    one = pump("a", "b", "c")
    assert attempts(one) == 4
    assert not one.failed


def test_several_killers_are_found_one_after_the_other(deaths):
    deaths |= {"first": 99, "second": 99, "third": 99}
    one = pump("a", "first", "second", "b", "third", "c")
    assert attempts(one) == 7
    assert names(one, one.failed) == {"first", "second", "third"}
    assert names(one, one.acked) == {"a", "b", "c"}


def test_a_suspect_is_tried_first_so_that_what_was_done_before_it_is_not_what_kills(deaths):
    deaths["b"] = 2
    one = pump("a", "b", "c")
    attempts(one)
    assert Deadly.executed == ["a", "b", "a", "b", "b", "a", "c"]


def test_a_killer_in_flush_is_found_by_flushing_after_each_tuple(deaths):
    deaths["killer in flush"] = 99
    one = pump("a", "killer", "b")
    assert attempts(one) == 4
    assert names(one, one.failed) == {"killer"}
    assert names(one, one.acked) == {"a", "b"}


def test_the_other_tuples_of_a_tree_that_has_failed_are_left_out(deaths):
    deaths["killer"] = 99
    one = pump("killer", copies=3)
    one.send()
    for task in one.tasks:
        one.book.alive = True
        with pytest.raises(Died):
            one.work(task)
    one.take_over()
    assert attempts(one) == 2
    assert Deadly.executed == ["killer"] * (3 + 2)
    assert names(one, one.failed) == {"killer"}


def test_what_was_proved_is_failed_at_once_even_if_the_run_ends_after_that(deaths):
    deaths |= {"first": 99, "second": 99}
    one = pump("a", "first", "second")
    assert attempts(one, most=4) == 4
    one.read()
    assert names(one, one.failed) == {"first"}


def test_an_untracked_killer_is_not_looked_for_and_nobody_is_blamed_for_it(deaths):
    deaths["killer"] = 99
    one = pump("killer", tracked=False)
    one.roots["a"] = one.feed(["a"])[0]
    assert attempts(one) == ATTEMPTS
    one.read()
    assert not one.failed
    assert names(one, one.acked) in (set(), {"a"})


def test_a_repeat_after_the_end_does_the_same_work(deaths):
    deaths["killer"] = 99
    one = pump("a", "killer")
    assert attempts(one) == 3
    one.take_over()
    one.run()
    assert names(one, one.acked) == {"a"}
    assert names(one, one.failed) == {"killer"}


@pytest.mark.parametrize("bolt", [Deadly, ByHand])
def test_a_tuple_that_hangs_fails_at_once_and_the_next_attempt_leaves_it_out(deaths, bolt):
    deaths["sleeper"] = 1
    one = pump("a", "sleeper", "b", bolt=bolt)
    one.send()
    impatient(one)
    with pytest.raises(Died):
        one.work()
    one.read()
    assert one.failed == {
        one.roots["sleeper"]: "deadly: still executing after 30 s; its process was ended"
    }
    one.book.alive = True
    one.take_over()
    one.run()
    assert names(one, one.acked) == {"a", "b"}
    assert names(one, one.failed) == {"sleeper"}

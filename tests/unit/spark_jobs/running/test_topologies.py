"""Whole topologies in plain Python, over the memory ledger: acks, failures with their reasons, and
retries.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from tests.support.pump import Pump, Source, killed_after
from tests.support.reasons import unplaced
from tiercel import ArrowBolt, BasicBolt, Bolt, Config, Topology, TopologyBuilder
from tiercel.acker.inbox.contract import StaleAttemptError


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup["line"].split():
            collector.emit([word])


class Count(BasicBolt):
    """Counts into a dictionary of the class, which all copies of the bolt share."""

    totals: ClassVar[Counter[str]] = Counter()

    def prepare(self, config, context):
        self.counts: Counter[str] = Counter()

    def execute(self, tup, collector):
        self.counts[tup[0]] += 1

    def flush(self, collector):
        self.totals.update(self.counts)
        self.counts.clear()


class Pass(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


def chain(*bolts: Any, fields: str = "line string", parallelism: int = 2, **settings) -> Topology:
    """Build spout -> b0 -> b1 -> …, each by shuffle."""
    builder = TopologyBuilder("chain", Config(**settings))
    builder.set_spout("spout", Source(fields))
    for number, bolt in enumerate(bolts):
        builder.set_bolt(f"b{number}", bolt, parallelism).shuffle_grouping(
            f"b{number - 1}" if number else "spout"
        )
    return builder.build()


def word_count(split: Any = None) -> Topology:
    builder = TopologyBuilder("word-count")
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("split", split or Split(), parallelism=3).shuffle_grouping("spout")
    builder.set_bolt("count", Count(), parallelism=4).fields_grouping("split", "word")
    return builder.build()


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    Count.totals.clear()


def everything_acked(pump: Pump, roots: list[int]) -> bool:
    return sorted(pump.acked) == sorted(roots) and not pump.failed and pump.ledger.pending() == 0


def test_words_are_counted_and_every_line_is_acked() -> None:
    pump = Pump(word_count())
    lines = [f"the falcon {number} and the tiercel {number % 7}" for number in range(500)]
    roots = []
    for start in range(0, 500, 100):
        roots += pump.feed(*([line] for line in lines[start : start + 100]))
        pump.run()
    assert Count.totals == Counter(word for line in lines for word in line.split())
    assert everything_acked(pump, roots)
    totals = pump.metrics.totals()
    assert sum(task["executed"] for task in totals["split"].values()) == 500
    assert sum(task["acked"] for task in totals["count"].values()) == 3500
    assert sum(task["transferred"] for task in totals["split"].values()) == 3500
    assert all(task["execute_ns"] > 0 for task in totals["count"].values())
    assert len(totals["count"]) == 4


def test_without_input_nothing_is_done() -> None:
    pump = Pump(word_count())
    assert not pump.work()
    pump.counting.flush()
    assert pump.metrics.totals() == {}


def test_a_line_without_words_is_acked_by_the_first_bolt() -> None:
    pump = Pump(word_count())
    roots = pump.feed([""], [" "])
    pump.run()
    assert everything_acked(pump, roots)


class Join(Bolt):
    """In ``flush``, emits one tuple anchored to all tuples of the step, and acks them."""

    output_fields = "word string"
    times = 1

    def prepare(self, config, context):
        self.held: list = []

    def execute(self, tup, collector):
        self.held.append(tup)

    def flush(self, collector):
        held = self.held
        self.held = []
        collector.emit(["+".join(sorted(tup[0] for tup in held))], held * self.times)
        for tup in held:
            collector.ack(tup)


def diamond(join: Bolt, *below: Any) -> Topology:
    builder = TopologyBuilder("diamond")
    builder.set_spout("spout", Source("word string"))
    for side in ("left", "right"):
        builder.set_bolt(side, Pass(), parallelism=2).shuffle_grouping("spout")
    # The join also receives the spout's tuples directly.
    builder.set_bolt("join", join).global_grouping("left").global_grouping("right").global_grouping(
        "spout"
    )
    last = "join"
    for number, bolt in enumerate(below):
        builder.set_bolt(f"below{number}", bolt).shuffle_grouping(last)
        last = f"below{number}"
    return builder.build()


@pytest.mark.parametrize(
    "times", [1, 2, 3], ids=["each anchor once", "each anchor twice", "each anchor three times"]
)
def test_a_diamond_is_acked_when_all_of_it_is_done_and_not_before(times: int) -> None:
    join = Join()
    join.times = times
    pump = Pump(diamond(join, Pass(), Pass(), Count()))
    roots = pump.feed(["a"], ["b"])
    pump.send()
    # Bolt by bolt, so that the join gets all of its input in one step.
    for bolts in (("left", "right"), ("join",), ("below0",), ("below1",), ("below2",)):
        assert pump.ledger.pending() == 2, f"acked before {bolts}"
        pump.work(*(task for bolt in bolts for task in pump.topology.task_ids(bolt)))
    pump.read()
    assert Count.totals == {"a+a+a+b+b+b": 1}
    assert everything_acked(pump, roots)


class Raising(BasicBolt):
    """Emits, then raises for the given words, or for all."""

    output_fields = "word string"

    def __init__(self, message: str, *words: str) -> None:
        self.message = message
        self.words = words

    def execute(self, tup, collector):
        collector.emit([tup[0]])
        if not self.words or tup[0] in self.words:
            raise RuntimeError(self.message)


def test_an_exception_fails_its_tuple_with_its_first_line_and_the_others_go_on() -> None:
    pump = Pump(chain(Raising("no good\nsecond line", "bad"), Count(), fields="word string"))
    good, bad, also_good = pump.feed(["good"], ["bad"], ["fine"])
    pump.run()
    assert pump.failed == {bad: "b0: RuntimeError: no good"}
    assert sorted(pump.acked) == sorted([good, also_good])
    assert Count.totals == {"good": 1, "fine": 1}, (
        "what the failed tuple had emitted was not dropped"
    )
    assert [unplaced(error.message) for error in pump.metrics.errors()] == ["RuntimeError: no good"]
    assert sum(task.get("failed", 0) for task in pump.metrics.totals()["b0"].values()) == 1


class Repeating(BasicBolt):
    """Emits each word on a second stream too; then a ``bad`` word fails, and a ``wrong`` one emits
    a value of a wrong type.
    """

    output_streams = {"default": "word string", "again": "word string"}  # noqa: RUF012 - as users write it

    def execute(self, tup, collector):
        collector.emit([tup[0]])
        collector.emit([7 if tup[0] == "wrong" else tup[0]], stream="again")
        if tup[0] == "bad":
            raise ValueError


def repeating(bolt: Any) -> Topology:
    builder = TopologyBuilder("repeating")
    builder.set_spout("spout", Source())
    builder.set_bolt("repeat", bolt).shuffle_grouping("spout")
    builder.set_bolt("all", Count(), parallelism=3).all_grouping("repeat")
    builder.set_bolt("one", Count()).shuffle_grouping("repeat").shuffle_grouping("repeat", "again")
    return builder.build()


def test_what_failed_tuples_had_emitted_is_not_counted() -> None:
    pump = Pump(repeating(Repeating()))
    pump.feed(["good"], ["bad"], ["wrong"], ["fine"])
    pump.run()
    counted = pump.metrics.totals()["repeat"][2]
    assert (counted["executed"], counted["acked"], counted["failed"]) == (4, 2, 2)
    assert (counted["emitted"], counted["transferred"]) == (2 * 2, 2 * 5)
    assert sum(Count.totals.values()) == 2 * 5


class RepeatingByHand(Bolt):
    """The same with explicit acks: a failed tuple's output is in other trees too, and leaves."""

    output_streams = Repeating.output_streams

    def execute(self, tup, collector):
        collector.emit([tup[0]], tup)
        collector.emit([7 if tup[0] == "wrong" else tup[0]], tup, stream="again")
        collector.emit([7 if tup[0] == "wrong" else tup[0]], tup)
        if tup[0] == "bad":
            collector.fail(tup)
        else:
            collector.ack(tup)


def test_of_what_a_bolt_by_hand_emits_only_values_of_a_wrong_type_are_not_counted() -> None:
    pump = Pump(repeating(RepeatingByHand()))
    pump.feed(["good"], ["bad"], ["wrong"])
    pump.run()
    counted = pump.metrics.totals()["repeat"][2]
    assert (counted["acked"], counted["failed"]) == (1, 2)
    assert counted["emitted"] == 3 + 3 + 1
    assert counted["transferred"] == sum(Count.totals.values()) == 2 * (4 + 1 + 4) + 4


class RepeatingBatches(ArrowBolt):
    """The same for whole batches, and each pair of neighbours once more, anchored to both."""

    output_streams = Repeating.output_streams

    def execute(self, batch, collector):
        words = batch.column(0).to_pylist()
        collector.emit({"word": words}, anchors=list(range(len(words))))
        collector.emit({"word": words}, anchors=list(range(len(words))), stream="again")
        for row in range(len(words) - 1):
            collector.emit({"word": [f"{words[row]}+"]}, anchors=[[row, row + 1]])
        for row, word in enumerate(words):
            if word == "bad":
                collector.fail(row)


def test_what_a_batch_had_emitted_for_failed_rows_alone_is_not_counted() -> None:
    pump = Pump(repeating(RepeatingBatches()))
    pump.feed(["bad"], ["bad"], ["good"], ["fine"])
    pump.run()
    counted = pump.metrics.totals()["repeat"][2]
    assert (counted["acked"], counted["failed"]) == (2, 2)
    assert sum(Count.totals.values()) == counted["transferred"]
    assert counted["emitted"] == 2 + 2 + 2
    assert counted["transferred"] == 4 * (2 + 2) + 1 * 2


def test_a_flush_that_raises_leaves_nothing_to_count() -> None:
    Flushing.life.clear()
    pump = Pump(chain(Flushing(), Count(), fields="word string", parallelism=1))
    pump.feed(["a"], ["b"])
    pump.run()
    counted = pump.metrics.totals()["b0"][2]
    assert (counted["failed"], counted.get("emitted", 0), counted.get("transferred", 0)) == (
        2,
        0,
        0,
    )


class Reporting(BasicBolt):
    def execute(self, tup, collector):
        collector.report_error(f"error {tup[0]}")


def test_a_task_reports_five_errors_in_ten_seconds_over_all_steps() -> None:
    pump = Pump(chain(Reporting(), fields="word string"))
    for batch in range(6):
        pump.feed(*([f"{batch}.{number}"] for number in range(10)))
        pump.run()
    reported = Counter(error.task for error in pump.metrics.errors())
    assert set(reported.values()) == {5}


def test_a_thousand_exceptions_fail_a_thousand_tuples_and_report_five() -> None:
    pump = Pump(chain(Raising("no"), fields="word string", parallelism=1))
    roots = pump.feed(*([str(number)] for number in range(1000)))
    pump.run()
    assert pump.failed.keys() == set(roots)
    assert len(pump.metrics.errors()) == 5


class ByWord(Bolt):
    """Handles each tuple as its word says, with explicit acks."""

    output_fields = "word string"

    def execute(self, tup, collector):
        actions = {
            "ack": lambda: collector.ack(tup),
            "fail": lambda: collector.fail(tup, "on purpose"),
            "hold": lambda: None,
            "reset_timeout": lambda: collector.reset_timeout(tup),
            "emit": lambda: collector.emit([tup[0]], tup),
            "free": lambda: collector.emit([tup[0]]),
            "raise": lambda: int("raised"),
            "foreign": lambda: collector.ack("foreign"),
            "number": lambda: collector.emit([7], tup),
            "stream": lambda: collector.emit([""], tup, stream="late"),
            "two": lambda: collector.emit(["", ""], tup),
        }
        for action in tup[0].split():
            actions[action]()


def test_what_was_emitted_before_the_ack_is_waited_for_also_when_the_anchor_is_held() -> None:
    pump = Pump(chain(ByWord(), Count(), fields="word string"))
    pump.feed(["emit hold"])
    pump.run()
    assert pump.ledger.pending() == 1
    assert Count.totals == {"emit hold": 1}


class Flushing(BasicBolt):
    """Raises in the very first flush."""

    output_fields = "word string"
    life: ClassVar[list[str]] = []

    def prepare(self, config, context):
        self.life.append("prepare")

    def execute(self, tup, collector):
        collector.emit([tup[0]])

    def flush(self, collector):
        self.life.append("flush")
        if self.life.count("flush") == 1:
            raise ConnectionError("gone")

    def cleanup(self):
        self.life.append("cleanup")


def test_what_a_flush_could_not_do_fails_and_the_next_step_has_a_fresh_copy() -> None:
    Flushing.life.clear()
    pump = Pump(chain(Flushing(), Count(), fields="word string", parallelism=1))
    lost = pump.feed(["a"], ["b"])
    pump.run()
    assert pump.failed == dict.fromkeys(lost, "b0: flush: ConnectionError: gone")
    assert not Count.totals
    kept = pump.feed(["c"])
    pump.run()
    assert pump.acked == kept
    assert Flushing.life == ["prepare", "flush", "cleanup", "prepare", "flush"]


class Unprepared(BasicBolt):
    tries = 0

    def prepare(self, config, context):
        Unprepared.tries += 1
        if Unprepared.tries == 1:
            raise OSError("no disk")

    def execute(self, tup, collector):
        pass


def test_a_bolt_that_cannot_be_prepared_fails_its_tuples_and_is_tried_again() -> None:
    Unprepared.tries = 0
    pump = Pump(chain(Unprepared(), fields="word string", parallelism=1))
    lost = pump.feed(["a"], ["b"])
    pump.run()
    assert pump.failed == dict.fromkeys(lost, "b0: prepare: OSError: no disk")
    kept = pump.feed(["c"])
    pump.run()
    assert pump.acked == kept


@pytest.mark.parametrize("ledger", [True, False], ids=["beside a ledger", "without a ledger"])
def test_tuples_in_no_tree_are_processed_once_and_never_told_to_the_ledger(ledger: bool) -> None:
    pump = Pump(chain(Split(), Pass(), Count()), ledger=ledger)
    pump.feed([" ".join(map(str, range(10_000)))], tracked=False)
    pump.run()
    assert sum(Count.totals.values()) == 10_000
    assert (pump.acked, pump.failed) == ([], {})
    shares = [counts["executed"] for counts in pump.metrics.totals()["b1"].values()]
    assert sum(shares) == 10_000


def test_who_is_free_takes_what_a_task_emits_and_each_tuple_once() -> None:
    pump = Pump(chain(Pass(), Count(), fields="word string"))
    roots = pump.feed(*([str(number)] for number in range(2000)))
    pump.send()
    # A task that is away or busy holds back no tuple.
    while pump.work(2) or pump.work(5):
        continue
    pump.read()
    assert sorted(pump.acked) == sorted(roots)
    assert sum(Count.totals.values()) == 2000


def test_a_step_appends_once_to_a_bolt_that_is_shuffled_to_however_many_tasks_it_has() -> None:
    builder = TopologyBuilder("wide")
    builder.set_spout("s", Source("word string"))
    builder.set_bolt("middle", Pass()).shuffle_grouping("s")
    builder.set_bolt("end", Count(), parallelism=50).shuffle_grouping("middle")
    pump = Pump(builder.build())
    appended = []
    append = pump.inboxes.append

    def counted(run, sender, number, parcels):
        appended.append((sender.task, len(parcels)))
        return append(run, sender, number, parcels)

    pump.around.inboxes.append = counted
    roots = pump.feed(*([str(number)] for number in range(500)))
    pump.run()
    assert sorted(pump.acked) == sorted(roots)
    of_the_middle = [parcels for task, parcels in appended if task == 2]
    assert of_the_middle
    assert max(of_the_middle) == 1


class Dice(BasicBolt):
    """Emits one more tuple at each attempt."""

    output_fields = "word string"
    attempts = 0

    def execute(self, tup, collector):
        Dice.attempts += 1
        for number in range(Dice.attempts):
            collector.emit([f"{tup[0]}{number}"])


def test_a_step_that_is_repeated_and_does_other_work_fails_its_roots_and_no_other() -> None:
    Dice.attempts = 0
    pump = Pump(chain(Dice(), Count(), fields="word string", parallelism=1))
    retried = pump.feed(["a"])
    pump.send()
    with killed_after(2):
        pump.work(2)
    pump.take_over(2)
    pump.run()
    assert pump.failed == dict.fromkeys(retried, "__acker: a repeated step did other work")
    others = pump.feed(["b"])
    pump.run()
    assert pump.acked == others


def test_what_tasks_of_an_earlier_run_did_is_refused_whatever_they_do() -> None:
    pump = Pump(word_count())
    roots = pump.feed(["a b"], ["c"])
    pump.send()
    pump.ledger.begin("another run")
    with pytest.raises(StaleAttemptError):
        pump.work()
    pump.read()
    assert (pump.acked, pump.failed) == ([], {})
    assert pump.ledger.pending() == len(roots)

"""Calls of a BatchBolt: which tuples are acked, which fail and why, what leaves and what stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from tests.support.pump import Pump, Source, killed_after
from tiercel import (
    ArrowBolt,
    BasicBolt,
    BatchBolt,
    BatchCollector,
    Bolt,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    TopologyError,
    Tuple,
)

Does = Callable[[Sequence[Tuple], BatchCollector], object]


class Calls(BatchBolt):
    """Runs a test's functions on its batch, and records the words it gets."""

    output_streams = {  # noqa: RUF012 - as users write it
        "default": "word string",
        "numbers": "n long",
        "named": "n long",
    }
    direct_streams = frozenset({"named"})
    seen: ClassVar[list[list[Any]]] = []

    def __init__(self, *does: Does, on_error: Any = "fail") -> None:
        self.does = does
        self.on_error = on_error
        self.size = 100
        self.wait_ms = 0

    def execute_batch(self, tuples, collector):
        self.seen.append([tup[0] for tup in tuples])
        for do in self.does:
            do(tuples, collector)


class Sink(BasicBolt):
    seen: ClassVar[list[Any]] = []

    def execute(self, tup, collector):
        self.seen.append(tup[0])


@pytest.fixture(autouse=True)
def _from_nothing() -> None:
    Calls.seen.clear()
    Sink.seen.clear()


def topology(
    bolt: Any, *, parallelism: int = 1, stream: str = "default", **config: Any
) -> Topology:
    builder = TopologyBuilder("batches")
    builder.set_spout("spout", Source("word string"))
    builder.set_bolt("bolt", bolt, parallelism, config=config).shuffle_grouping("spout")
    sink = builder.set_bolt("sink", Sink(), parallelism=2)
    if stream == "named":
        sink.direct_grouping("bolt", stream)
    else:
        sink.shuffle_grouping("bolt", stream)
    return builder.build()


def run(bolt: Any, *words: str, **options: Any) -> tuple[Pump, dict[str, int]]:
    """Feed words and run until idle; return the roots by word."""
    pump = Pump(topology(bolt, **options))
    roots = pump.feed(*([word] for word in words))
    pump.run()
    return pump, dict(zip(words, roots, strict=True))


def outcome(pump: Pump, roots: dict[str, int]) -> tuple[list[str], dict[str, str]]:
    """Return the words that were acked, and those that failed with their reasons."""
    words = {root: word for word, root in roots.items()}
    acked = sorted(words[root] for root in pump.acked)
    return acked, {words[root]: reason for root, reason in pump.failed.items()}


def emit_all(tuples, collector):
    for tup in tuples:
        collector.emit([tup["word"]], tup)


def fail(*bad: str) -> Does:
    def check(tuples, collector):
        for tup in tuples:
            if tup["word"] in bad:
                collector.fail(tup, f"{tup['word']} is bad")

    return check


def raise_for(*bad: str) -> Does:
    def check(tuples, collector):
        found = sorted({tup["word"] for tup in tuples} & {*bad})
        if found:
            raise ValueError(f"{found[0]} raises")

    return check


# -- acks and failures --------------------------------------------------------------------------


def test_all_tuples_come_together_and_are_acked_when_it_returns() -> None:
    pump, roots = run(Calls(emit_all), "a", "b", "c")
    assert Calls.seen == [["a", "b", "c"]]
    assert outcome(pump, roots) == (["a", "b", "c"], {})
    assert sorted(Sink.seen) == ["a", "b", "c"]


def test_what_it_fails_fails_alone_and_what_was_emitted_for_it_stays_behind() -> None:
    pump, roots = run(Calls(emit_all, fail("b")), "a", "b", "c")
    assert outcome(pump, roots) == (["a", "c"], {"b": "bolt: b is bad"})
    assert sorted(Sink.seen) == ["a", "c"]


def test_a_tuple_that_fails_twice_keeps_its_first_reason() -> None:
    def again(tuples, collector):
        collector.fail(tuples[0], "again")

    pump, roots = run(Calls(fail("a"), again), "a")
    assert outcome(pump, roots) == ([], {"a": "bolt: a is bad"})


def test_a_failure_without_a_reason_has_one_nevertheless() -> None:
    pump, roots = run(Calls(lambda tuples, collector: collector.fail(tuples[0])), "a")
    assert outcome(pump, roots) == ([], {"a": "bolt: failed by the bolt"})


def test_when_it_raises_all_fail_and_nothing_that_was_emitted_leaves() -> None:
    pump, roots = run(Calls(emit_all, fail("c"), raise_for("b")), "a", "b", "c")
    reason = "bolt: ValueError: b raises"
    assert outcome(pump, roots) == ([], {"a": reason, "b": reason, "c": "bolt: c is bad"}), (
        "what it had said of a tuple is more exact than the exception"
    )
    assert Sink.seen == []
    assert len(Calls.seen) == 1
    assert pump.metrics.totals()["bolt"][2].get("emitted", 0) == 0


def test_split_finds_the_bad_ones_by_halves_and_their_neighbours_are_acked_once() -> None:
    words = [f"w{number}" for number in range(40)]
    pump, roots = run(Calls(emit_all, raise_for("w7", "w8"), on_error="split"), *words)
    acked, failed = outcome(pump, roots)
    assert failed == {"w7": "bolt: ValueError: w7 raises", "w8": "bolt: ValueError: w8 raises"}
    assert sorted(acked) == sorted({*words} - {"w7", "w8"})
    assert sorted(Sink.seen) == acked, "each once, although some were in calls that raised"
    assert len(Calls.seen) < 30, "and not one call per tuple"


class Doubles(BatchBolt):
    """Changes the values that it gets, as if they were its own, and raises for 13."""

    output_fields = "n long, numbers array<long>, names map<string,string>"
    on_error = "split"
    size = 8
    wait_ms = 0
    batches: ClassVar[list[int]] = []

    def execute_batch(self, tuples, collector):
        self.batches.append(len(tuples))
        for tup in tuples:
            order = tup["order"]
            order["twice"] = 2 * order.pop("n")
            tup["numbers"].append(0)
            tup["names"]["by"] = "me"
        if any(tup["order"]["twice"] == 26 for tup in tuples):
            raise ValueError("13 is bad")
        for tup in tuples:
            collector.emit([tup["order"]["twice"], tup["numbers"], tup["names"]], tup)


def test_each_call_of_a_split_gets_the_values_as_they_came() -> None:
    Doubles.batches.clear()
    builder = TopologyBuilder("batches")
    builder.set_spout(
        "spout", Source("order struct<n long>, numbers array<long>, names map<string,string>")
    )
    builder.set_bolt("bolt", Doubles()).shuffle_grouping("spout")
    builder.set_bolt("sink", Sink()).shuffle_grouping("bolt")
    pump = Pump(builder.build())
    # In several chunks, so that rows are found in each of them.
    roots = [pump.feed([{"n": n}, [n], {"of": str(n)}])[0] for n in range(10, 16)]
    pump.work_at("bolt")
    assert Doubles.batches[0] == 6
    assert pump.rows("sink") == [
        (2 * n, [n, 0], [("of", str(n)), ("by", "me")]) for n in range(10, 16) if n != 13
    ]
    pump.run()
    assert pump.failed == {roots[3]: "bolt: ValueError: 13 is bad"}


def test_split_forgets_the_failures_of_a_call_that_raised() -> None:
    def fail_all_if_many(tuples, collector):
        for tup in tuples if len(tuples) > 1 else ():
            collector.fail(tup, "too many")
        if len(tuples) > 1:
            raise ValueError("too many")

    pump, roots = run(Calls(fail_all_if_many, on_error="split"), "a", "b", "c")
    assert outcome(pump, roots) == (["a", "b", "c"], {})


def test_a_value_of_a_wrong_type_fails_its_own_tuple_alone() -> None:
    def numbers(tuples, collector):
        for tup in tuples:
            collector.emit([1 if tup["word"] == "a" else "one"], tup, stream="numbers")

    pump, roots = run(Calls(numbers), "a", "b", stream="numbers")
    acked, failed = outcome(pump, roots)
    assert acked == ["a"]
    assert "'numbers'" in failed["b"]
    assert Sink.seen == [1]


@pytest.mark.parametrize("bad", [(), ("a",), ("a", "b", "c")])
def test_a_fold_leaves_while_one_of_its_anchors_is_good(bad: tuple[str, ...]) -> None:
    def fold(tuples, collector):
        collector.emit(["+".join(tup["word"] for tup in tuples)], tuples)

    pump, roots = run(Calls(fold, fail(*bad)), "a", "b", "c")
    acked, failed = outcome(pump, roots)
    assert (acked, sorted(failed)) == (sorted({"a", "b", "c"} - {*bad}), sorted(bad))
    assert Sink.seen == (["a+b+c"] if len(bad) < 3 else [])
    counts = pump.metrics.totals()["bolt"][2]
    assert counts.get("emitted", 0) == counts.get("transferred", 0) == len(Sink.seen)


def test_what_is_anchored_to_nothing_leaves_without_a_tree() -> None:
    def alone(tuples, collector):
        collector.emit(["alone"], ())
        for tup in tuples:
            collector.fail(tup, "no")

    pump, roots = run(Calls(alone), "a")
    assert outcome(pump, roots) == ([], {"a": "bolt: no"})
    assert Sink.seen == ["alone"]


def test_a_direct_stream_reaches_the_task_that_is_named() -> None:
    def direct(tuples, collector):
        collector.emit_direct(4, [1], tuples[0], stream="named")
        with pytest.raises(Exception, match="the tasks that receive stream 'named' are 3, 4"):
            collector.emit_direct(9, [1], tuples[0], stream="named")

    pump, roots = run(Calls(direct), "a", stream="named")
    assert outcome(pump, roots) == (["a"], {})
    assert pump.metrics.totals()["sink"][4]["executed"] == 1


def test_the_time_of_a_call_counts_for_each_tuple_that_it_acked() -> None:
    pump, _ = run(Calls(fail("c")), "a", "b", "c")
    counts = pump.metrics.totals()["bolt"][2]
    assert (counts["executed"], counts["acked"], counts["failed"]) == (3, 2, 1)
    assert 0 < counts["process_ns"] <= 2 * counts["execute_ns"]


# -- the collector's rules ----------------------------------------------------------------------


class Keeper(BatchBolt):
    """Keeps objects that it must not keep."""

    output_fields = "word string"
    transient = frozenset({"tuples", "collector"})
    wait_ms = 0
    errors: ClassVar[list[str]] = []

    def prepare(self, config, context):
        self.tuples: list[Any] = []
        self.collector: Any = None

    def execute_batch(self, tuples, collector):
        for attempt in (
            lambda: collector.emit([""], self.tuples[0]),
            lambda: collector.fail(self.tuples[0]),
            lambda: collector.emit([""], ["no tuple"]),
            lambda: self.collector.emit([""], tuples[0]),
            lambda: self.collector.fail(tuples[0]),
        ):
            if self.tuples:
                with pytest.raises(Exception) as raised:  # noqa: PT011 - collected, and compared below
                    attempt()
                self.errors.append(f"{raised.type.__name__}: {raised.value}")
        self.tuples = tuples
        self.collector = collector


def test_tuples_and_collectors_of_another_batch_are_refused() -> None:
    Keeper.errors.clear()
    pump = Pump(topology(Keeper()))
    for word in ("a", "b"):
        pump.feed([word])
        pump.now += 10
        pump.run()
    mine, foreign = "which is not in this batch", "Tuple(spout:default, word='a')"
    ended = (
        "AlreadyAckedError: 'bolt' uses the collector of a call that has ended; its tuples are "
        "acked or failed: use the collector that execute_batch or flush is given, and do not "
        "keep it"
    )
    assert Keeper.errors == [
        f"ForeignTupleError: 'bolt' anchors to {foreign}, {mine}",
        f"ForeignTupleError: 'bolt' fails {foreign}, {mine}",
        "ForeignTupleError: 'bolt' anchors to 'no tuple', which is no tuple",
        ended,
        ended,
    ]


def test_a_tuple_of_the_other_half_is_in_another_batch() -> None:
    kept: list[Tuple] = []

    def keep(tuples, collector):
        kept.extend(tuples)
        if len(tuples) > 1:
            raise ValueError("many")
        if tuples[0]["word"] == "b":
            collector.fail(kept[0])

    pump, roots = run(Calls(keep, on_error="split"), "a", "b")
    acked, failed = outcome(pump, roots)
    assert acked == ["a"]
    assert "which is not in this batch" in failed["b"]


def test_anchors_cannot_be_forgotten() -> None:
    pump, roots = run(Calls(lambda tuples, collector: collector.emit(["x"])), "a")
    assert (
        "BatchCollector.emit() missing 1 required positional argument: 'anchors'"
        in (outcome(pump, roots)[1]["a"])
    )


def test_errors_are_shown_and_harm_no_tuple() -> None:
    pump, roots = run(Calls(lambda tuples, collector: collector.report_error("slow today")), "a")
    assert outcome(pump, roots) == (["a"], {})
    assert [error.message for error in pump.metrics.errors()] == ["slow today"]


# -- flush, ticks, attributes, several sources --------------------------------------------------


class Flushing(Calls):
    transient = frozenset({"done"})
    fail_flush = False

    def flush(self, collector):
        self.seen.append(["flush"])
        if self.fail_flush:
            raise OSError("disk full")
        collector.emit(["flushed"], ())


def test_flush_comes_after_the_batch_and_can_emit_outside_of_trees() -> None:
    pump, roots = run(Flushing(emit_all), "a", "b")
    assert Calls.seen == [["a", "b"], ["flush"]]
    assert outcome(pump, roots) == (["a", "b"], {})
    assert sorted(Sink.seen) == ["a", "b", "flushed"]


def test_a_flush_that_raises_fails_every_tuple() -> None:
    bolt = Flushing(emit_all, fail("b"))
    bolt.fail_flush = True
    pump, roots = run(bolt, "a", "b")
    assert outcome(pump, roots) == (
        [],
        {"a": "bolt: flush: OSError: disk full", "b": "bolt: b is bad"},
    )
    assert Sink.seen == []


class Ticked(BatchBolt):
    output_fields = "word string"
    wait_ms = 5_000
    seen: ClassVar[list[Any]] = []

    def execute_batch(self, tuples, collector):
        self.seen.append(["tick" if tup.is_tick else tup["word"] for tup in tuples])


def test_a_tick_comes_by_itself_and_no_batch_leaves_earlier_for_it() -> None:
    Ticked.seen.clear()
    pump = Pump(topology(Ticked(), tick_tuple_freq_secs=2))
    pump.feed(["a"], ["b"])
    pump.run()
    for pump.now in (2.0, 4.0, 5.0):
        pump.run()
    assert Ticked.seen == [["tick"], ["tick"], ["a", "b"]]
    assert len(pump.acked) == 2


def test_a_tick_that_is_due_with_the_batch_comes_after_it() -> None:
    Ticked.seen.clear()
    pump = Pump(topology(Ticked(), tick_tuple_freq_secs=2))
    pump.feed(["a"], ["b"])
    pump.run()
    pump.now = 6.0
    pump.run()
    assert Ticked.seen == [["a", "b"], ["tick"]]


class Counting(BatchBolt):
    output_fields = "word string"

    def prepare(self, config, context):
        self.count = 0

    def execute_batch(self, tuples, collector):
        self.count += len(tuples)
        collector.emit([str(self.count)], tuples)


def test_attributes_outlive_the_process_and_tuples_among_them_are_values() -> None:
    pump = Pump(topology(Counting()))
    for _ in range(2):
        pump.feed(["a"], ["b"])
        pump.run()
        pump.now += 1
        pump.run()
        pump.take_over()
    assert Sink.seen == ["2", "4"]


@pytest.mark.parametrize("effects", range(8))
def test_a_process_that_dies_anywhere_in_its_commit_is_repeated_and_counts_once(
    effects: int,
) -> None:
    pump = Pump(topology(Calls(emit_all, fail("b"), raise_for("c"), on_error="split")))
    roots = dict(zip("abcd", pump.feed(*([word] for word in "abcd")), strict=True))
    with killed_after(effects):
        pump.run()
    pump.take_over()
    pump.run()
    acked, failed = outcome(pump, roots)
    assert acked == ["a", "d"]
    assert failed == {"b": "bolt: b is bad", "c": "bolt: ValueError: c raises"}
    assert pump.waiting() == 0


def test_where_a_process_died_each_tuple_is_a_call_of_its_own() -> None:
    pump = Pump(topology(Calls(emit_all)))
    roots = dict(zip("abc", pump.feed(*([word] for word in "abc")), strict=True))

    pump.send()
    with killed_after(0):
        pump.attempts[2].turn()
    Calls.seen.clear()
    pump.take_over()
    pump.run()
    assert Calls.seen == [["a"], ["b"], ["c"]]
    assert outcome(pump, roots) == (["a", "b", "c"], {})


def test_tuples_of_several_sources_come_together_in_the_order_of_the_inbox() -> None:
    builder = TopologyBuilder("sources")
    builder.set_spout("words", Source("word string"))
    builder.set_spout("numbers", Source("n long"))
    bolt = builder.set_bolt("bolt", Calls())
    bolt.shuffle_grouping("words").shuffle_grouping("numbers")
    pump = Pump(builder.build())
    pump.feed(["a"], ["b"], spout="words")
    pump.feed([1], spout="numbers")
    pump.run()
    assert Calls.seen == [["a", "b", 1]]


# -- bad input ----------------------------------------------------------------------------------


class Nothing(BatchBolt):
    def execute(self, tup, collector):
        """Has the place of execute_batch."""


class Async(BatchBolt):
    async def execute_batch(self, tuples, collector):  # type: ignore[override]
        """Never run."""


def mixed(kind: type) -> Any:
    return type("Mixed", (BatchBolt, kind), {"execute_batch": lambda *_: None})()


def with_(**attributes: Any) -> Any:
    bolt = Calls()
    vars(bolt).update(attributes)
    return bolt


@pytest.mark.parametrize(
    ("bolt", "config", "said"),
    [
        (Nothing(), {}, "bolt 'bolt' is a BatchBolt without execute_batch"),
        (Async(), {}, "execute_batch is async and would never run"),
        (mixed(StatefulBolt), {}, "is both BatchBolt and StatefulBolt: derive it from one of them"),
        (mixed(BasicBolt), {}, "is both BatchBolt and BasicBolt"),
        (mixed(Bolt), {}, "is both BatchBolt and Bolt"),
        (mixed(ArrowBolt), {}, "is both BatchBolt and ArrowBolt"),
        (with_(size=0), {}, "size must be a number of tuples, 1 to 10,000, not 0"),
        (Calls(), {"size": 20_000}, "size must be a number of tuples, 1 to 10,000, not 20000"),
        (Calls(), {"size": "many"}, "not 'many'"),
        (Calls(), {"size": True}, "not True"),
        (with_(wait_ms=-1), {}, "wait_ms must be a number of milliseconds, not -1"),
        (Calls(), {"wait_ms": float("inf")}, "not inf"),
        (Calls(), {"wait_ms": None}, "not None"),
        (Calls(), {"wait_ms": 30_000}, "waits 30000 ms for a batch, and its messages time out"),
        (with_(on_error="ignore"), {}, 'on_error must be "fail" or "split", not \'ignore\''),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(bolt: Any, config: Any, said: str) -> None:
    with pytest.raises(TopologyError) as raised:
        topology(bolt, **config)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)

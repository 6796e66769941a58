"""Input and calls of an ArrowBolt: which rows are acked, which fail and why, what leaves and what
stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.pump import Pump, Source, killed_after
from tests.support.reasons import unplaced
from tiercel import (
    ArrowBolt,
    ArrowCollector,
    BasicBolt,
    Bolt,
    Topology,
    TopologyBuilder,
    TopologyError,
)
from tiercel.testing import FeederSpout, LocalCluster, complete_topology


class Calls(ArrowBolt):
    """Runs a test's function on its batch, and records the words of each call."""

    output_streams = {  # noqa: RUF012 - as users write it
        "default": "word string",
        "errors": "word string, why string",
        "named": "n long",
    }
    direct_streams = frozenset({"named"})
    seen: ClassVar[list[list[str]]] = []

    def __init__(self, *does: Callable[[pa.RecordBatch, ArrowCollector], object]) -> None:
        self.does = does

    def execute(self, batch, collector):
        self.seen.append(batch.column(0).to_pylist())
        for do in self.does:
            do(batch, collector)


class Sink(BasicBolt):
    seen: ClassVar[list] = []

    def execute(self, tup, collector):
        self.seen.append(tuple(tup.values))
        if tup[0] == "refused":
            raise ValueError("refused")


@pytest.fixture(autouse=True)
def _from_nothing() -> None:
    Calls.seen.clear()
    Sink.seen.clear()


def topology(
    bolt: Any, *, parallelism: int = 1, stream: str = "default", fields: str = "word string"
) -> Topology:
    builder = TopologyBuilder("arrow")
    builder.set_spout("spout", Source(fields))
    builder.set_bolt("bolt", bolt, parallelism).shuffle_grouping("spout")
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


def emit_all(batch, collector):
    collector.emit(batch, np.arange(batch.num_rows))


def raise_for(*bad: str):
    def check(batch, collector):
        found = sorted({*batch["word"].to_pylist()} & {*bad})
        if found:
            raise ValueError(f"{found[0]} is bad")

    return check


# -- input -----------------------------------------------------------------------------------------


class Sources(ArrowBolt):
    seen: ClassVar[list] = []

    def execute(self, batch, collector):
        source = (collector.source_component, collector.source_stream)
        self.seen.append(
            (
                source,
                batch.schema.names,
                list(zip(collector.source_tasks.to_pylist(), *batch, strict=True)),
            )
        )

    def flush(self, collector):
        self.seen.append(
            (
                (collector.source_component, collector.source_stream),
                [],
                collector.source_tasks.to_pylist(),
            )
        )


class Fork(BasicBolt):
    output_streams = {"words": "word string", "lengths": "n int"}  # noqa: RUF012 - as users write it

    def prepare(self, config, context):
        self.task = context.task_id

    def execute(self, tup, collector):
        collector.emit([f"{tup[0]}@{self.task}"], stream="words")
        collector.emit([len(tup[0])], stream="lengths")


def test_it_is_called_once_per_stream_of_each_component_and_told_the_origin_of_the_rows() -> None:
    Sources.seen.clear()
    builder = TopologyBuilder("sources")
    builder.set_spout("spout", Source())
    builder.set_bolt("fork", Fork(), parallelism=3).fields_grouping("spout", "word")
    declarer = builder.set_bolt("bolt", Sources())
    declarer.shuffle_grouping("spout").shuffle_grouping("fork", "words").shuffle_grouping(
        "fork", "lengths"
    )
    pump = Pump(builder.build())
    words = [f"{number:03}" for number in range(20)]
    roots = pump.feed(*([word] for word in words))
    pump.run()
    called = {source: (names, rows) for source, names, rows in Sources.seen}
    assert len(Sources.seen) == len(called) == 4
    assert [source for source, _, _ in Sources.seen] == sorted(
        called, key=lambda source: (source == ("", ""), source)
    )
    names, rows = called["fork", "words"]
    assert names == ["word"]
    assert len(rows) == 20
    assert {task for task, _ in rows} == {2, 3, 4}
    assert all(word.as_py().endswith(f"@{task}") for task, word in rows)
    assert called["fork", "lengths"][0] == ["n"]
    assert {task for task, _ in called["spout", "default"][1]} == {1}
    assert called["", ""] == ([], [])
    assert sorted(pump.acked) == sorted(roots)


def test_what_nothing_was_emitted_for_is_acked() -> None:
    pump, roots = run(Calls(), "a", "b")
    assert sorted(pump.acked) == sorted(roots.values())
    assert Calls.seen == [["a", "b"]]


def test_a_hundred_thousand_words_of_one_message_are_one_tree() -> None:
    class Explode(ArrowBolt):
        output_fields = "word string"

        def execute(self, batch, collector):
            words = pc.split_pattern(batch["word"], " ")
            collector.emit({"word": words.flatten()}, pc.list_parent_indices(words))

    pump, roots = run(Explode(), " ".join(map(str, range(100_000))))
    assert pump.acked == list(roots.values())
    assert len(Sink.seen) == 100_000
    assert pump.metrics.totals()["bolt"][2]["transferred"] == 100_000


# -- failures --------------------------------------------------------------------------------------


def test_one_bad_row_fails_alone_and_its_neighbours_are_tried_again_by_halves() -> None:
    words = [f"w{number}" for number in range(1000)]
    pump, roots = run(Calls(emit_all, raise_for("w400")), *words)
    assert pump.failed == {roots["w400"]: "bolt: ValueError: w400 is bad"}
    assert len(pump.acked) == 999
    assert Counter(word for (word,) in Sink.seen) == Counter(
        {word: 1 for word in words if word != "w400"}
    )
    assert len(Calls.seen) <= 1 + 2 * 10
    assert [unplaced(error.message) for error in pump.metrics.errors()] == [
        "ValueError: w400 is bad"
    ]
    assert pump.metrics.totals()["bolt"][2]["executed"] == 1000
    assert pump.metrics.totals()["bolt"][2]["emitted"] == 999


def test_rows_that_are_all_bad_all_fail_each_for_its_reason() -> None:
    pump, roots = run(Calls(raise_for("a", "b", "c", "d", "e", "f", "g")), *"abcdefg")
    assert pump.failed == {root: f"bolt: ValueError: {word} is bad" for word, root in roots.items()}
    assert len(pump.metrics.errors()) == 5
    assert pump.ledger.pending() == 0


def test_what_fails_by_number_fails_and_the_others_are_acked() -> None:
    def fail(batch, collector):
        collector.fail([1], "too\nlong")
        collector.fail(np.array([2, 1]), KeyError("k"))
        collector.fail(3)

    pump, roots = run(Calls(emit_all, fail), "a", "b", "c", "d")
    assert pump.failed == {
        roots["b"]: "bolt: too",
        roots["c"]: "bolt: KeyError: 'k'",
        roots["d"]: "bolt: failed by the bolt",
    }
    assert pump.acked == [roots["a"]]
    assert Sink.seen == [("a",)], "what was emitted for a failed row was not dropped"


@pytest.mark.parametrize("order", ["emit first", "fail first"])
def test_what_is_anchored_to_a_good_row_goes_and_what_is_anchored_to_failed_rows_alone_stays(
    order: str,
) -> None:
    def emit(batch, collector):
        collector.emit({"word": ["ab", "bc", "b"]}, [[0, 1], [1, 2], [1, 1]])

    def fail(batch, collector):
        collector.fail([1, 2], "bad")

    pump, roots = run(
        Calls(*((emit, fail) if order == "emit first" else (fail, emit))), "a", "b", "c"
    )
    assert Sink.seen == [("ab",)]
    assert pump.acked == [roots["a"]]
    assert pump.failed.keys() == {roots["b"], roots["c"]}
    assert pump.ledger.pending() == 0


def test_a_row_is_not_acked_before_what_is_anchored_to_it_and_to_a_failed_row() -> None:
    def fold(batch, collector):
        collector.emit({"word": ["refused"]}, [[0, 1]])
        collector.fail(1, "bad")

    pump, roots = run(Calls(fold), "a", "b")
    assert pump.failed == {roots["a"]: "sink: ValueError: refused", roots["b"]: "bolt: bad"}


def test_a_folded_row_that_fails_fails_all_of_its_messages() -> None:
    pump, roots = run(
        Calls(
            lambda batch, collector: collector.emit({"word": ["refused", "c"]}, [[0, 1, 0], [2]])
        ),
        *"abc",
    )
    assert pump.failed == {roots[word]: "sink: ValueError: refused" for word in "ab"}
    assert pump.acked == [roots["c"]]


def test_rows_in_no_tree_are_said_to_be_and_fail_nobody() -> None:
    pump, roots = run(
        Calls(lambda batch, collector: collector.emit({"word": ["refused", "x"]}, None)), "a"
    )
    assert pump.acked == [roots["a"]]
    assert sorted(Sink.seen) == [("refused",), ("x",)]


def test_rows_in_no_tree_are_executed_once_each() -> None:
    run(Calls(lambda batch, collector: collector.emit({"word": ["x"] * 10_000}, None)), "a")
    assert len(Sink.seen) == 10_000


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        (
            lambda b, c: c.emit(b, [0], "late"),
            "UnknownStreamError: 'bolt' emits on stream 'late'; its streams are",
        ),
        (
            lambda b, c: c.emit(b, [0], "named"),
            "DirectStreamError: 'bolt' emits on stream 'named', which is direct",
        ),
        (
            lambda b, c: c.emit_direct(3, b, [0]),
            "DirectStreamError: 'bolt' emits directly on stream 'default', which is not",
        ),
        (
            lambda b, c: c.emit({"n": [1]}, [0]),
            "BadValuesError: 'bolt', stream 'default': the columns are n; give one for",
        ),
        (
            lambda b, c: c.emit({"word": [1]}, [0]),
            "BadValuesError: 'bolt', stream 'default': field 'word' is a string, the",
        ),
        (
            lambda b, c: c.emit(["x"], [0]),
            "BadValuesError: 'bolt', stream 'default': give a RecordBatch",
        ),
        (
            lambda b, c: c.emit(b, [1]),
            (
                "BadAnchorsError: 'bolt', stream 'default': there is no input row 1: its "
                "rows are 0 to 0"
            ),
        ),
        (
            lambda b, c: c.emit(b, []),
            "BadAnchorsError: 'bolt', stream 'default': there are 1 output rows and anchors for 0",
        ),
        (
            lambda b, c: c.emit(b),
            "TypeError: ArrowCollector.emit() missing 1 required positional argument: 'anchors'",
        ),
        (lambda b, c: c.fail([1]), "BadAnchorsError: 'bolt' fails rows: there is no input row 1"),
        (
            lambda b, c: c.fail(pc.equal(b["word"], "bad")),
            "BadAnchorsError: 'bolt' fails rows: a mask names no rows",
        ),
        (
            lambda b, c: c.emit_direct([3, 3], {"n": [1]}, [0], "named"),
            "BadValuesError: 'bolt' emits directly to [3, 3]",
        ),
        (
            lambda b, c: c.emit_direct(9, {"n": [1]}, [0], "named"),
            "DirectStreamError: 'bolt' emits directly to task 9; the tasks",
        ),
    ],
)
def test_a_mistake_fails_its_row_with_a_line_that_names_the_bolt_and_the_others_go_on(
    do: Any, reason: str
) -> None:
    def for_bad(batch, collector):
        emit_all(batch, collector)
        if batch["word"].to_pylist() == ["bad"]:
            do(batch, collector)
        elif "bad" in batch["word"].to_pylist():
            raise ValueError

    pump, roots = run(Calls(for_bad), "good", "bad", "fine")
    assert pump.failed.keys() == {roots["bad"]}
    assert pump.failed[roots["bad"]].startswith(f"bolt: {reason}")
    assert sorted(pump.acked) == sorted([roots["good"], roots["fine"]])
    assert sorted(Sink.seen) == [("fine",), ("good",)]


class Keeping(ArrowBolt):
    """Keeps the collector of its first call and uses it in the second."""

    output_fields = "word string"
    first = None

    def execute(self, batch, collector):
        self.first = self.first or collector
        emit_all(batch, self.first)


def test_a_collector_is_of_no_use_after_its_call() -> None:
    pump = Pump(topology(Keeping()))
    first = pump.feed(["a"])
    pump.run()
    second = pump.feed(["b"])
    pump.run()
    assert pump.acked == first
    assert pump.failed[second[0]].startswith(
        "bolt: AlreadyAckedError: 'bolt' uses the collector of a call that has ended"
    )


class Flushing(Calls):
    """Does something in flush."""

    life: ClassVar[list[str]] = []

    def prepare(self, config, context):
        self.life.append("prepare")

    def flush(self, collector):
        self.life.append("flush")
        for do in self.does:
            do(None, collector)

    def execute(self, batch, collector):
        emit_all(batch, collector)

    def cleanup(self):
        self.life.append("cleanup")


def test_what_a_flush_could_not_do_fails_every_row_and_the_next_step_has_a_fresh_copy() -> None:
    def fail_once(batch, collector):
        collector.emit({"word": ["x"]}, None)
        if Flushing.life.count("flush") == 1:
            raise ConnectionError("gone")

    Flushing.life.clear()
    pump = Pump(topology(Flushing(fail_once)))
    lost = pump.feed(["a"], ["b"])
    pump.run()
    assert pump.failed == dict.fromkeys(lost, "bolt: flush: ConnectionError: gone")
    assert Sink.seen == []
    kept = pump.feed(["c"])
    pump.run()
    assert pump.acked == kept
    assert sorted(Sink.seen) == [("c",), ("x",)]
    assert Flushing.life == ["prepare", "flush", "cleanup", "prepare", "flush"]


def test_there_is_no_row_to_anchor_to_in_flush() -> None:
    pump, roots = run(Flushing(lambda _, collector: collector.emit({"word": ["x"]}, [0])), "a")
    reason = (
        "flush: BadAnchorsError: 'bolt', stream 'default': there is no input row 0: there are no "
        "rows here"
    )
    assert pump.failed == {roots["a"]: f"bolt: {reason}"}


def test_a_bolt_that_cannot_be_prepared_fails_its_rows() -> None:
    class Unprepared(Calls):
        def prepare(self, config, context):
            raise OSError("no disk")

    pump, roots = run(Unprepared(), "a", "b")
    assert pump.failed == dict.fromkeys(roots.values(), "bolt: prepare: OSError: no disk")
    assert pump.metrics.totals()["bolt"][2]["executed"] == 2


def test_errors_are_reported_and_fail_nothing() -> None:
    pump, roots = run(Calls(lambda _, collector: collector.report_error(KeyError("k"))), "a")
    assert pump.acked == list(roots.values())
    assert [unplaced(error.message) for error in pump.metrics.errors()] == ["KeyError: 'k'"]


class Lazy(ArrowBolt):
    def execute(self, batch, collector):
        yield batch


def test_a_bolt_whose_code_would_never_run_is_refused() -> None:
    with pytest.raises(TopologyError, match="'bolt': execute is a generator and would never run"):
        topology(Lazy())


# -- output ----------------------------------------------------------------------------------------


def test_a_numpy_array_may_be_used_again() -> None:
    class Reusing(ArrowBolt):
        output_fields = "n long"

        def prepare(self, config, context):
            self.buffer = np.zeros(1, np.int64)

        def execute(self, batch, collector):
            for number in (1, 2):
                self.buffer[0] = number
                collector.emit({"n": self.buffer}, [0])

    run(Reusing(), "a")
    assert sorted(Sink.seen) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("tasks", "first", "second"),
    [(3, [0, 1, 2], []), ([3, 4, 3], [0, 2], [1]), (np.array([4] * 3), [], [0, 1, 2])],
)
def test_rows_may_be_sent_to_tasks_by_name(tasks: Any, first: list[int], second: list[int]) -> None:
    class Tasks(BasicBolt):
        seen: ClassVar[dict[int, list[int]]] = {}

        def prepare(self, config, context):
            self.task = context.task_id

        def execute(self, tup, collector):
            self.seen.setdefault(self.task, []).append(tup[0])

    def name(batch, collector):
        collector.emit_direct(tasks, {"n": np.arange(3)}, [0, 0, 1], "named")

    builder = TopologyBuilder("direct")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Calls(name)).shuffle_grouping("spout")
    builder.set_bolt("tasks", Tasks(), parallelism=2).direct_grouping("bolt", "named")
    pump = Pump(builder.build())
    roots = pump.feed(["a"], ["b"])
    pump.run()
    assert (Tasks.seen.get(3, []), Tasks.seen.get(4, [])) == (first, second)
    assert sorted(pump.acked) == sorted(roots)


class Concatenate(ArrowBolt):
    """Joins all words in order of arrival, so that another order gives another output."""

    output_fields = "word string"

    def execute(self, batch, collector):
        collector.emit(
            {"word": ["".join(batch["word"].to_pylist())]}, [list(range(batch.num_rows))]
        )


@pytest.mark.parametrize("effects", [1, 2, 3], ids=["sealed", "appended", "acked"])
def test_a_retry_in_another_process_does_the_same_work(effects: int) -> None:
    builder = TopologyBuilder("retried")
    builder.set_spout("spout", Source())
    builder.set_bolt("pass", Calls(emit_all), parallelism=4).fields_grouping("spout", "word")
    builder.set_bolt("bolt", Concatenate()).shuffle_grouping("pass")
    builder.set_bolt("sink", Sink(), parallelism=2).shuffle_grouping("bolt")
    pump = Pump(builder.build())
    roots = pump.feed(*([word] for word in "abcdefghij"))
    pump.work_at("pass")
    with killed_after(effects):
        pump.work_at("bolt")
    pump.take_over()
    pump.run()
    assert len(Sink.seen) == 1
    assert sorted(Sink.seen[0][0]) == list("abcdefghij")
    assert sorted(pump.acked) == sorted(roots)
    assert pump.failed == {}


class Totals(ArrowBolt):
    """Counts the occurrences of each word so far."""

    output_fields = "word string, n long"

    def prepare(self, config, context):
        self.counts: Counter[str] = Counter()

    def execute(self, batch, collector):
        words = batch["word"].to_pylist()
        self.counts.update(words)
        collector.emit(
            {"word": words, "n": [self.counts[word] for word in words]}, np.arange(len(words))
        )


def test_its_attributes_go_with_it_to_another_process() -> None:
    pump = Pump(topology(Totals()))
    for _ in range(3):
        pump.feed(["a"])
        pump.run()
        pump.take_over()
    assert sorted(Sink.seen) == [("a", 1), ("a", 2), ("a", 3)]


# -- among other bolts -----------------------------------------------------------------------------


class Split(ArrowBolt):
    output_fields = "word string"

    def execute(self, batch, collector):
        words = pc.split_pattern(batch["line"], " ")
        collector.emit({"word": words.flatten()}, pc.list_parent_indices(words))


class Letters(ArrowBolt):
    """Drops everything that is not a word."""

    output_fields = "word string"

    def execute(self, batch, collector):
        kept = pc.indices_nonzero(pc.utf8_is_alpha(batch["word"]))
        collector.emit(batch.take(kept), kept)


class Shout(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup["word"].upper()])


class Gather(Bolt):
    """Emits one tuple per pair of tuples of the step."""

    output_fields = "words array<string>"

    def prepare(self, config, context):
        self.held: list = []

    def execute(self, tup, collector):
        self.held.append(tup)
        if len(self.held) == 2:
            self.flush(collector)

    def flush(self, collector):
        held = self.held
        self.held = []
        if held:
            collector.emit([[tup["word"] for tup in held]], held)
        for tup in held:
            collector.ack(tup)


class Tally(ArrowBolt):
    output_fields = "word string, n long"

    def execute(self, batch, collector):
        words = batch["words"]
        table = pa.table({"word": words.flatten(), "row": pc.list_parent_indices(words)})
        tally = table.group_by("word").aggregate([("row", "list"), ([], "count_all")])
        collector.emit({"word": tally["word"], "n": tally["count_all"]}, tally["row_list"])
        if "BOOM" in tally["word"].to_pylist():
            raise ValueError("boom")


def mixed(spout: Any) -> Topology:
    builder = TopologyBuilder("mixed")
    builder.set_spout("lines", spout)
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("letters", Letters(), parallelism=2).shuffle_grouping("split")
    builder.set_bolt("shout", Shout(), parallelism=2).fields_grouping("letters", "word")
    builder.set_bolt("gather", Gather()).global_grouping("shout")
    builder.set_bolt("tally", Tally()).shuffle_grouping("gather")
    builder.set_bolt("sink", Sink()).all_grouping("tally")
    return builder.build()


def test_bolts_of_all_kinds_work_in_one_topology() -> None:
    lines = ["to be or not 2 be", "", "be 4 to"]
    emitted = complete_topology(
        mixed(Source("line string")), mock_sources={"lines": [[line] for line in lines]}
    )
    assert len(emitted["split"]) == 10
    assert sorted(word for (word,) in emitted["letters"]) == [
        "be",
        "be",
        "be",
        "not",
        "or",
        "to",
        "to",
    ]
    counted: Counter[str] = Counter()
    for word, count in emitted["tally"]:
        counted[word] += count
    assert counted == Counter({"BE": 3, "TO": 2, "OR": 1, "NOT": 1})


def test_a_row_that_fails_far_down_fails_the_messages_that_it_came_from_and_no_other() -> None:
    feeder = FeederSpout(fields="line string")
    with LocalCluster(mixed(feeder)) as cluster:
        feeder.feed(["boom"], msg_id="bad")
        cluster.run_until_idle()
        feeder.feed(["a b c d"], msg_id="good")
        cluster.run_until_idle()
        assert cluster.failed("lines") == ["bad"]
        assert unplaced(cluster.fail_reasons("lines")[0]).endswith("ValueError: boom")
        assert cluster.acked("lines") == ["good"]
        assert cluster.pending("lines") == 0

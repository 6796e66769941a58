"""Rules of the collectors: a broken rule is an error that names the component and fails the tuple;
the worker goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.pump import Source
from tiercel import (
    ArrowCollector,
    BasicBolt,
    BasicCollector,
    Bolt,
    OutputCollector,
    TopologyBuilder,
)
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.tuples import ACKED, FAILED, OPEN, Origin, Tuple
from tiercel.spark_jobs.emitting.arrow_collector import ArrowRecorder
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import BasicRecorder, OutputRecorder, Record
from tiercel.spark_jobs.errors import (
    AlreadyAckedError,
    BadValuesError,
    DirectStreamError,
    ForeignTupleError,
    TupleError,
    UnknownStreamError,
)
from tiercel.spark_jobs.kinds.batch import BatchRecorder


class Splitter(Bolt):
    output_streams = {  # noqa: RUF012 - as users write it
        "default": "word string, n long",
        "named": "word string",
        "alone": "word string",
    }
    direct_streams = frozenset({"named"})


class Sink(BasicBolt):
    pass


ORIGIN = Origin("source", "default", 1, Schema.parse("word string, n long").arrow)
LISTENERS = [3, 4]


def record() -> Record:
    builder = TopologyBuilder("rules")
    builder.set_spout("source", Source())
    builder.set_bolt("split", Splitter()).shuffle_grouping("source")
    builder.set_bolt("sink", Sink(), parallelism=2).all_grouping("split").direct_grouping(
        "split", stream="named"
    )
    made = Record("split", Outputs(builder.build(), 2))
    origin = ORIGIN.of(made, range(5, 8))
    made.tuples = [
        Tuple((word, number), origin, number) for number, word in enumerate(("a", "b", "c"))
    ]
    return made


def by_hand() -> tuple[OutputRecorder, Record]:
    made = record()
    return OutputRecorder(made), made


def basic() -> tuple[BasicRecorder, Record]:
    made = record()
    collector = BasicRecorder(made)
    collector.current = made.tuples[0]
    return collector, made


@pytest.mark.parametrize("make", [by_hand, basic])
def test_emit_returns_the_tasks_that_receive_the_tuple(make: Callable) -> None:
    collector, made = make()
    assert collector.emit(["x", 1]) == LISTENERS
    assert collector.emit(("x", 1)) == LISTENERS
    assert collector.emit(["x"], stream="alone") == []
    assert (made.emitted, made.transferred) == (3, 4)


@pytest.mark.parametrize("make", [by_hand, basic])
def test_a_list_that_the_bolt_uses_again_is_not_the_tuple(make: Callable) -> None:
    collector, made = make()
    values = ["x", 1]
    collector.emit(values)
    values[0] = "y"
    assert {one.values[0] for one in made.outputs.task_outputs if one.values} == {("x", 1)}


@pytest.mark.parametrize("make", [by_hand, basic])
@pytest.mark.parametrize(
    "values",
    [["x"], [], ["x", 1, 2], "xy", b"xy", {"x": 1, "n": 2}, {"x", 1}, None, 3, iter(["x", 1])],
)
def test_the_wrong_number_of_values_is_an_error_that_names_the_fields(
    make: Callable, values: object
) -> None:
    collector, made = make()
    with pytest.raises(
        BadValuesError,
        match=r"'split' emits .* give a list with one value .* \(word string, n long\)",
    ):
        collector.emit(values)
    assert made.emitted == 0


@pytest.mark.parametrize("make", [by_hand, basic])
def test_an_unknown_stream_is_an_error_that_names_the_known_ones(make: Callable) -> None:
    collector, made = make()
    with pytest.raises(
        UnknownStreamError,
        match="'split' emits on stream 'late'; its streams are default, named, alone",
    ):
        collector.emit(["x", 1], stream="late")
    with pytest.raises(UnknownStreamError):
        collector.emit_direct(3, ["x", 1], stream="late")
    assert made.emitted == 0


@pytest.mark.parametrize("make", [by_hand, basic])
def test_a_direct_stream_takes_emit_direct_only_and_to_its_listeners_only(make: Callable) -> None:
    collector, made = make()
    with pytest.raises(
        DirectStreamError, match="'split' emits on stream 'named', which is direct: use emit_direct"
    ):
        collector.emit(["x"], stream="named")
    with pytest.raises(
        DirectStreamError, match="'split' emits directly on stream 'default', which is not direct"
    ):
        collector.emit_direct(3, ["x", 1])
    for stranger in (2, 99, "sink", [3]):
        with pytest.raises(
            DirectStreamError, match="the tasks that receive stream 'named' are 3, 4"
        ):
            collector.emit_direct(stranger, ["x"], stream="named")
    assert made.emitted == 0
    collector.emit_direct(4, ["x"], stream="named")
    assert [one.target for one in made.outputs.task_outputs if one.values] == [4]
    assert (made.emitted, made.transferred) == (1, 1)


@pytest.mark.parametrize("verb", ["ack", "fail"])
@pytest.mark.parametrize("again", ["ack", "fail", "emit", "emit_direct", "reset_timeout"])
def test_a_tuple_that_was_acked_or_failed_is_done_with(verb: str, again: str) -> None:
    collector, made = by_hand()
    tup = made.tuples[0]
    getattr(collector, verb)(tup)
    calls = {
        "emit": lambda: collector.emit(["x", 1], [made.tuples[1], tup]),
        "emit_direct": lambda: collector.emit_direct(3, ["x"], tup, stream="named"),
    }
    with pytest.raises(AlreadyAckedError, match=f"'split' .* it has {verb}ed before"):
        calls.get(again, lambda: getattr(collector, again)(tup))()
    assert tup.state == (ACKED if verb == "ack" else FAILED)
    assert (made.emitted, made.tuples[1].emitted) == (0, 0)


@pytest.mark.parametrize("call", ["ack", "fail", "reset_timeout", "emit"])
@pytest.mark.parametrize("kind", ["another task's", "none at all"])
def test_a_foreign_tuple_is_an_error(call: str, kind: str) -> None:
    collector, _ = by_hand()
    stranger = record().tuples[0] if kind == "another task's" else "tuple"
    calls = {"emit": lambda: collector.emit(["x", 1], [stranger])}
    with pytest.raises(
        ForeignTupleError, match=r"'split' .* (this task does not hold|is no tuple)"
    ):
        calls.get(call, lambda: getattr(collector, call)(stranger))()


def test_every_rule_is_a_tuple_error() -> None:
    for error in (
        AlreadyAckedError,
        BadValuesError,
        DirectStreamError,
        ForeignTupleError,
        UnknownStreamError,
    ):
        assert issubclass(error, TupleError)


def test_a_basic_bolt_cannot_emit_where_there_is_no_tuple() -> None:
    collector, _ = basic()
    collector.current = None
    with pytest.raises(
        TupleError, match="'split' emits in flush, where there is no tuple to anchor to: use a Bolt"
    ):
        collector.emit(["x", 1])
    with pytest.raises(TupleError, match="use a Bolt"):
        collector.emit_direct(3, ["x"], stream="named")


def test_each_anchor_counts_what_is_anchored_to_it() -> None:
    collector, made = by_hand()
    first, second, _ = made.tuples
    collector.emit(["x", 1], first)
    collector.emit(["y", 2], [first, second, first])
    task_output = next(one for one in made.outputs.task_outputs if one.values)
    assert task_output.anchor_counts == [1, 3]
    assert task_output.rows == [0, 0, 1, 0]
    assert task_output.positions == [0, 1, 0, 2]


def test_acking_and_failing_leave_the_others_open() -> None:
    collector, made = by_hand()
    collector.ack(made.tuples[0])
    collector.fail(made.tuples[1], "too hot")
    assert [tup.state for tup in made.tuples] == [ACKED, FAILED, OPEN]
    assert made.reasons == {1: "too hot"}


def test_at_most_five_errors_are_reported() -> None:
    collector, made = by_hand()
    for number in range(9):
        collector.report_error(f"error {number}" if number % 2 else ValueError(str(number)))
    assert made.errors == ["ValueError: 0", "error 1", "ValueError: 2", "error 3", "ValueError: 4"]


def test_a_tuple_is_read_by_name_and_by_position() -> None:
    tup = record().tuples[1]
    assert (tup["word"], tup[0], tup["n"], tup[-1], len(tup)) == ("b", "b", 1, 1, 2)
    assert (list(tup.values), tup.fields) == (["b", 1], ("word", "n"))
    assert (tup.source_component, tup.source_stream, tup.source_task) == ("source", "default", 1)
    assert repr(tup) == "Tuple(source:default, word='b', n=1)"


def test_an_unknown_field_is_an_error_that_names_the_fields() -> None:
    with pytest.raises(KeyError, match="there is no field 'wort'; the fields are word, n"):
        record().tuples[0]["wort"]


def test_a_collector_is_what_the_signatures_of_bolts_name_and_none_of_the_others():
    kinds = (BasicCollector, OutputCollector, ArrowCollector)
    assert [isinstance(basic()[0], kind) for kind in kinds] == [True, False, False]
    assert [isinstance(by_hand()[0], kind) for kind in kinds] == [False, True, False]
    assert [issubclass(ArrowRecorder, kind) for kind in kinds] == [False, False, True]


@pytest.mark.parametrize("kind", [BasicCollector, OutputCollector, ArrowCollector])
def test_the_contract_of_a_collector_says_what_each_call_does(kind):
    calls = [name for name in dir(kind) if not name.startswith("_")]
    assert {"emit", "emit_direct", "report_error"} <= set(calls)
    assert all(getattr(kind, name).__doc__ for name in calls)
    assert set(calls) <= kind.__abstractmethods__


def test_errors_of_a_wrong_call_name_the_class_that_users_know():
    collector, _ = basic()
    with pytest.raises(TypeError, match=r"^BasicCollector\.emit\(\) missing 1 required"):
        collector.emit()
    with pytest.raises(AttributeError, match=r"^'BasicCollector' object has no attribute 'ack'"):
        collector.ack(ORIGIN)


def test_a_call_of_a_batch_that_raised_leaves_no_trace() -> None:
    made = record()
    first, *others = made.tuples

    def emit(tuples: list[Tuple], *, fold: bool) -> BatchRecorder:
        collector = BatchRecorder(made, tuples)
        collector.emit(["word", 1], tuples)
        for tup in tuples if not fold else ():
            collector.emit_direct(3, ["named"], tup, stream="named")
        return collector

    def traces() -> list[object]:
        sent = [
            (one.values[:], one.rows[:], one.positions[:], one.anchor_counts[:], one.numbers[:])
            for one in made.outputs.task_outputs
        ]
        counted = (made.emitted, made.transferred, dict(made.reasons))
        return [sent, counted, [(tup.emitted, tup.state) for tup in made.tuples]]

    emit([first], fold=True).commit(5)
    before = traces()
    raised = emit(others, fold=False)
    raised.fail(others[0])
    assert traces() != before
    raised.undo()
    assert traces() == before
    assert [tup.state for tup in made.tuples] == [ACKED, OPEN, OPEN]

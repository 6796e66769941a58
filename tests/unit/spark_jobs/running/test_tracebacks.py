"""The first traceback of each error is logged, and afterwards only its count."""

from __future__ import annotations

import logging

import pytest

from tests.support.pump import Pump, Source
from tiercel import ArrowBolt, BasicBolt, Bolt, RedisUnavailableError, TopologyBuilder
from tiercel.acker.metrics.contract import TRACES_KEPT
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.spark_jobs.running.counting import Tracebacks


def helper(word):
    if word == "deep":
        raise KeyError(word)
    raise ValueError(word)


class Calls(BasicBolt):
    def execute(self, tup, collector):
        helper(tup[0])


class CallsInFlush(BasicBolt):
    def execute(self, tup, collector):
        pass

    def flush(self, collector):
        helper("deep")


class CallsForRows(ArrowBolt):
    def execute(self, batch, collector):
        helper("deep")


def pump_of(bolt) -> Pump:
    builder = TopologyBuilder("traced")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    return Pump(builder.build())


def first_line(pump: Pump) -> int:
    """Return the line of the helper's first error."""
    return helper.__code__.co_firstlineno + 2


@pytest.fixture(autouse=True)
def _seen(caplog):
    caplog.set_level(logging.WARNING, "tiercel.spark_jobs.running.counting")


def test_the_first_traceback_of_each_kind_is_a_warning_and_the_others_are_counted(caplog):
    pump = pump_of(Calls())
    pump.feed(["deep"], ["deep"], ["other"], ["deep"])
    pump.run()
    deep, other = caplog.records
    assert [deep.event, other.event] == ["bolt_raised", "bolt_raised"]
    assert deep.getMessage().startswith(
        f"bolt[2]: KeyError: 'deep' (running/test_tracebacks.py:{first_line(pump)})\nTraceback"
    )
    assert "in helper\n    raise KeyError(word)" in deep.getMessage()
    assert "in execute\n    helper(tup[0])" in deep.getMessage()
    assert "execution.py" not in deep.getMessage()
    assert "ValueError: other" in other.getMessage()


def test_the_counters_keep_each_kind_with_its_first_traceback_and_how_often_it_came():
    pump = pump_of(Calls())
    pump.feed(["deep"], ["deep"], ["other"], ["deep"])
    pump.run()
    found = {known.first.kind: known for known in pump.metrics.traces()}
    assert {kind: known.count for kind, known in found.items()} == {"KeyError": 3, "ValueError": 1}
    deep = found["KeyError"]
    assert deep.first.component == "bolt"
    assert deep.first.place == f"running/test_tracebacks.py:{first_line(pump)}"
    assert deep.first.text.endswith("KeyError: 'deep'")
    assert deep.first.at <= deep.last


@pytest.mark.parametrize(
    ("bolt", "where"), [(CallsInFlush(), "flush: "), (CallsForRows(), "")], ids=["flush", "arrow"]
)
def test_so_it_is_with_what_flush_and_an_arrow_bolt_raise(caplog, bolt, where):
    pump = pump_of(bolt)
    pump.feed(["a"], ["b"])
    pump.run()
    [record] = caplog.records
    assert f"bolt[2]: {where}KeyError: 'deep' (running/test_tracebacks.py" in record.getMessage()
    [known] = pump.metrics.traces()
    assert known.count == (1 if where else 2)


def test_rows_that_fail_by_halves_are_no_causes_of_each_other(caplog):
    pump = pump_of(CallsForRows())
    pump.feed(*[[str(number)] for number in range(8)])
    pump.run()
    [record] = caplog.records
    assert "During handling" not in record.getMessage()


def test_once_per_minute_it_is_said_how_often_an_error_came_again(caplog):
    now = [0.0]
    tracebacks = Tracebacks(lambda: now[0])

    def fail() -> None:
        try:
            helper("deep")
        except KeyError as error:
            tracebacks.note("bolt", 7, error, "KeyError: 'deep'")

    for second in range(100):
        now[0] = float(second)
        fail()
        tracebacks.look()
    first, again = caplog.records
    assert first.event == "bolt_raised"
    assert again.event == "bolt_raised_again"
    assert "bolt: KeyError (running/test_tracebacks.py" in again.getMessage()
    assert "occurred 60 more times in 60 s, 61 times since " in again.getMessage()
    now[0] = 10_000.0
    tracebacks.look()
    assert len(caplog.records) == 3
    tracebacks.look()
    assert len(caplog.records) == 3, "an error that does not come again needs no words"


def test_tracebacks_are_kept_while_the_metrics_are_away(monkeypatch):
    pump = pump_of(Calls())
    pump.feed(["deep"])
    pump.send()
    pump.work()

    def away(*_: object) -> None:
        raise RedisUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryMetrics, "trace", away)
        for _ in range(3):
            pump.feed(["deep"])
            pump.send()
            pump.work()
            with pytest.raises(RedisUnavailableError):
                pump.counting.flush()
    assert pump.metrics.traces() == []
    assert pump.metrics.totals() == {}
    waiting = pump.counting.tracebacks.take()
    assert [bool(report.text) for report in waiting] == [True, False], "the first and the newest"
    pump.counting.tracebacks.give_back(waiting)
    pump.counting.flush()
    [known] = pump.metrics.traces()
    assert known.first.text
    assert known.count == 4, "errors are counted after the report of their kind"


def test_exceptions_that_are_made_up_at_run_time_do_not_fill_the_counters():
    tracebacks = Tracebacks()
    counters = {
        tracebacks.note("bolt", 7, type(f"Error{number}", (Exception,), {})(), "x")
        for number in range(TRACES_KEPT + 50)
    }
    assert len(counters) == TRACES_KEPT + 1


class Catches(Bolt):
    def execute(self, tup, collector):
        try:
            helper("deep")
        except KeyError as error:
            collector.report_error(error)
            collector.fail(tup, error)


def test_what_a_bolt_catches_and_gives_as_the_reason_has_its_line_and_is_no_bug(caplog):
    pump = pump_of(Catches())
    pump.feed(["a"])
    pump.run()
    [error] = pump.metrics.errors()
    assert error.message == f"KeyError: 'deep' (running/test_tracebacks.py:{first_line(pump)})"
    assert pump.metrics.traces() == []
    assert caplog.records == []

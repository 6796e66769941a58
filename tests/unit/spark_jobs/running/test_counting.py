"""Counts are reported at intervals: added up in between, and kept while the metrics store is
unreachable.
"""

from __future__ import annotations

import pytest

from tests.support.pump import Pump, Source
from tiercel import BasicBolt, RedisUnavailableError, TopologyBuilder
from tiercel.acker.metrics.contract import total_of
from tiercel.acker.metrics.memory import MemoryMetrics


class Raises(BasicBolt):
    def execute(self, tup, collector):
        if tup[0] == "bad":
            raise ValueError("x" * 10_000)


@pytest.fixture
def pump() -> Pump:
    builder = TopologyBuilder("counted")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Raises()).shuffle_grouping("spout")
    return Pump(builder.build())


def executed(pump: Pump) -> int:
    return total_of(pump.metrics.totals(), "bolt")["executed"]


def test_nothing_is_told_before_the_clock_says_so_and_then_all_steps_at_once(pump: Pump) -> None:
    for word in ("a", "b", "bad"):
        pump.feed([word])
        pump.send()
        pump.work()
    assert executed(pump) == 0
    pump.counting.flush()
    assert executed(pump) == 3
    pump.counting.flush()
    assert executed(pump) == 3
    assert len(pump.metrics.errors()) == 1


def test_an_error_is_cut_to_a_length_that_a_monitor_can_show(pump: Pump) -> None:
    pump.feed(["bad"])
    pump.run()
    [error] = pump.metrics.errors()
    assert (error.component, error.task, len(error.message)) == ("bolt", 2, 500)


def test_errors_are_kept_while_the_metrics_are_away(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump.feed(["bad"])
    pump.send()
    pump.work()

    def away(*_: object) -> None:
        raise RedisUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryMetrics, "add_all", away)
        with pytest.raises(RedisUnavailableError):
            pump.counting.flush()
    assert pump.metrics.errors() == []
    pump.counting.flush()
    assert len(pump.metrics.errors()) == 1

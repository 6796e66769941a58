"""A bolt that works longer than the message timeout keeps its message by resetting the timeout, and
the spout hears of it before the step ends.
"""

from datetime import timedelta

import pytest

from tests.support.pump import Pump, Source
from tiercel import Bolt, RedisUnavailableError, TopologyBuilder


class Resets(Bolt):
    """Resets its tuple's timeout, and checks that the spout was told before the step ends."""

    pump = None
    heard = None

    def execute(self, tup, collector):
        for _ in range(3):
            collector.reset_timeout(tup)
        Resets.heard = self.pump.feeds[0].read(timedelta(0)).reset
        collector.ack(tup)


@pytest.fixture
def pump(monkeypatch):
    builder = TopologyBuilder("resets")
    builder.set_spout("words", Source())
    builder.set_bolt("resets", Resets()).shuffle_grouping("words")
    made = Pump(builder.build())
    monkeypatch.setattr(Resets, "pump", made)
    monkeypatch.setattr(Resets, "heard", None)
    monkeypatch.setattr(Resets, "__deepcopy__", lambda self, memo: Resets(), raising=False)
    return made


def test_the_spout_is_told_while_the_bolt_still_works(pump, monkeypatch):
    monkeypatch.setattr("tiercel.spark_jobs.emitting.record._TELL_RESETS_S", 0)
    [root] = pump.feed(["long"])
    pump.run()
    assert Resets.heard == [root, root, root]
    assert pump.acked == [root]


def test_not_oftener_than_once_a_second_and_the_rest_when_the_step_ends(pump):
    [root] = pump.feed(["short"])
    pump.run()
    assert Resets.heard == []
    assert pump.reset == [root]


def test_a_redis_that_is_away_does_not_fail_the_tuple(pump, monkeypatch):
    monkeypatch.setattr("tiercel.spark_jobs.emitting.record._TELL_RESETS_S", 0)
    reset = pump.ledger.reset_timeout
    away = iter([True, True, True])

    def sometimes(roots):
        if next(away, False):
            raise RedisUnavailableError("away")
        reset(roots)

    monkeypatch.setattr(pump.ledger, "reset_timeout", sometimes)
    [root] = pump.feed(["long"])
    pump.run()
    assert Resets.heard == []
    assert (pump.acked, pump.failed, pump.reset) == ([root], {}, [root])


def test_a_redis_that_is_away_when_the_step_ends_repeats_no_work(pump, monkeypatch):
    reset = pump.ledger.reset_timeout
    away = iter([True, True])

    def sometimes(roots):
        if next(away, False):
            raise RedisUnavailableError("away")
        reset(roots)

    monkeypatch.setattr(pump.ledger, "reset_timeout", sometimes)
    [root] = pump.feed(["long"])
    # A new attempt, which would execute the tuple again, begins where ``run`` ends by an error.
    pump.run()
    assert (pump.acked, pump.failed, pump.reset) == ([root], {}, [root])

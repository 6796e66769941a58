"""``context.now()``: simulated in memory, for spouts, bolts and groupings."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.pump import Source
from tiercel import BasicBolt, Spout, TopologyBuilder
from tiercel.testing import FeederSpout, LocalCluster, LocalClusterError

START = datetime(2026, 1, 1, tzinfo=UTC)


class Stamp(BasicBolt):
    output_fields = "at timestamp"

    def prepare(self, config: Any, context: Any) -> None:
        self.context = context

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([self.context.now()])


class Clock(Spout):
    """Emits the time whenever it is called, once per simulated second."""

    output_fields = "at timestamp"

    def open(self, config: Any, context: Any) -> None:
        self.context = context
        self.last = None

    def next_tuple(self, collector: Any) -> None:
        if (now := self.context.now()) != self.last:
            self.last = now
            collector.emit([now])


class ByTime:
    def prepare(self, context: Any, stream: str, target_tasks: Any) -> None:
        self.now = context.now
        self.tasks = target_tasks

    def choose_tasks(self, task_id: int, values: Any) -> Any:
        assert self.now() == values[0]
        return self.tasks


def stamping(spout: Any) -> Any:
    builder = TopologyBuilder("stamps")
    builder.set_spout("spout", spout)
    builder.set_bolt("stamp", Stamp()).custom_grouping("spout", ByTime())
    return builder.build()


def test_all_components_see_the_time_that_the_test_moves(local_cluster: Any) -> None:
    cluster = local_cluster(stamping(Clock()))
    cluster.run_until_idle()
    cluster.advance_time(0.5)
    cluster.advance_time(86_400)
    moments = [[START + timedelta(seconds=each)] for each in (0, 0.5, 86_400.5)]
    assert cluster.read_tuples("spout") == cluster.read_tuples("stamp") == moments
    assert cluster.now() == moments[-1][0]


def test_the_time_begins_where_the_test_says() -> None:
    zone = timezone(timedelta(hours=2))
    with LocalCluster(stamping(Clock()), starts_at=datetime(2030, 5, 1, 2, tzinfo=zone)) as cluster:
        cluster.run_until_idle()
        assert cluster.read_tuples("stamp") == [[datetime(2030, 5, 1, tzinfo=UTC)]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"starts_at": datetime(2026, 1, 1)}, "a datetime with an offset"),  # noqa: DTZ001 - refused
        ({"starts_at": 7}, "a datetime with an offset, .* not 7"),
        ({"starts_at": START, "engine": "spark"}, "on Spark time is real"),
    ],
)
def test_a_start_that_is_no_time_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(LocalClusterError, match=why):
        LocalCluster(stamping(FeederSpout(fields="at timestamp")), **options)


def test_outside_of_the_kit_it_is_the_clock_of_the_machine() -> None:
    context = stamping(Source("at timestamp")).context_of(2)
    before = datetime.now(UTC)
    assert before <= pickle.loads(pickle.dumps(context)).now() <= datetime.now(UTC)

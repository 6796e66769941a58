"""Batches in the test kit: none waits for tuples that cannot come."""

from __future__ import annotations

from typing import Any

from tests.semantics.components import Pass, feeding
from tiercel import BasicBolt, BatchBolt, Config, Topology, TopologyBuilder
from tiercel.testing import LocalCluster


class Sum(BatchBolt):
    """Emits how many tuples it got, and how many of them were ticks."""

    output_fields = "tuples long, ticks long"
    wait_ms = 10_000

    def execute_batch(self, tuples, collector):
        collector.emit([len(tuples), sum(tup.is_tick for tup in tuples)], tuples)


def sums(feeder: Any, **config: Any) -> TopologyBuilder:
    builder = TopologyBuilder("batches")
    builder.set_spout("s", feeder)
    builder.set_bolt("sum", Sum(), config=config).shuffle_grouping("s")
    return builder


def emitted(topology: Topology, component: str) -> list[list[Any]]:
    """Run until idle; return the component's output, if all was acked."""
    with LocalCluster(topology) as cluster:
        cluster.run_until_idle()
        assert (cluster.failed("s"), cluster.pending("s")) == ([], 0)
        return cluster.read_tuples(component)


def test_a_batch_that_is_not_full_is_executed_and_no_time_passes() -> None:
    feeder = feeding(1, 2, 3)
    with LocalCluster(sums(feeder).build(), Config(message_timeout_secs=1)) as cluster:
        cluster.run_until_idle()
        assert cluster.read_tuples("sum") == [[3, 0]]
        assert (cluster.acked("s"), cluster.failed("s")) == ([1, 2, 3], [])
        feeder.feed([4], 4)
        assert cluster.step()
        assert cluster.read_tuples("sum") == [[3, 0], [1, 0]]


def test_a_full_batch_takes_no_more_than_its_size() -> None:
    assert emitted(sums(feeding(*range(12)), size=5).build(), "sum") == [[5, 0], [5, 0], [2, 0]]


def test_a_batch_has_the_company_of_all_that_is_under_way() -> None:
    builder = TopologyBuilder("company")
    builder.set_spout("s", feeding(*range(100)))
    last = builder.set_bolt("sum", Sum())
    builder.set_bolt("one", Pass(), parallelism=3).shuffle_grouping("s")
    builder.set_bolt("two", Pass(), parallelism=2).shuffle_grouping("one")
    last.shuffle_grouping("s").shuffle_grouping("one").shuffle_grouping("two")
    assert emitted(builder.build(), "sum") == [[300, 0]]


def test_batches_behind_batches_come_to_an_end() -> None:
    class Each(BatchBolt):
        output_fields = "x long"

        def execute_batch(self, tuples, collector):
            for tup in tuples:
                collector.emit([tup[0]], tup)

    builder = TopologyBuilder("row")
    builder.set_spout("s", feeding(*range(10)))
    builder.set_bolt("one", Each(), config={"size": 3}).shuffle_grouping("s")
    builder.set_bolt("two", Each(), config={"size": 4, "wait_ms": 0}).shuffle_grouping("one")
    builder.set_bolt("three", Sum()).shuffle_grouping("two")
    with LocalCluster(builder.build()) as cluster:
        cluster.run_until_idle()
        assert cluster.read_tuples("three") == [[10, 0]]
        assert len(cluster.acked("s")) == 10


def test_ticks_come_by_themselves_when_time_is_advanced() -> None:
    feeder = feeding(1)
    with LocalCluster(sums(feeder, tick_tuple_freq_secs=5).build()) as cluster:
        cluster.advance_time(5)
        feeder.feed([2], 2)
        cluster.advance_time(5)
        assert cluster.read_tuples("sum") == [[1, 0], [1, 1], [1, 0], [1, 1]]


class Odd(BasicBolt):
    output_fields = "x long"

    def execute(self, tup, collector):
        if tup[0] % 2:
            collector.emit([tup[0] // 2])


def test_a_topology_without_batches_ends_as_before() -> None:
    builder = TopologyBuilder("plain")
    builder.set_spout("s", feeding(1, 2))
    builder.set_bolt("odd", Odd()).shuffle_grouping("s")
    assert emitted(builder.build(), "odd") == [[0]]

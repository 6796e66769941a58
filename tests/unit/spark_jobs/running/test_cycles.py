"""Bolts on a cycle, as in Storm: circulating tuples come to an end, and no task waits for room that
only it could make.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.pump import Pump, Source
from tiercel import BasicBolt, Bolt, Topology, TopologyBuilder
from tiercel.acker.inbox.contract import Bounds
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.spark_jobs.topology.graph import cycle_of, has_cycle
from tiercel.testing import FeederSpout, LocalCluster, LocalClusterError
from tiercel.workers.testing import memory_engine


class CountDown(BasicBolt):
    """Sends a number round until it is 0."""

    output_streams = {"again": "n long", "done": "n long"}  # noqa: RUF012 - as users write it

    def execute(self, tup, collector):
        number = tup[0]
        if number < 0:
            raise ValueError("below zero")
        if number == 0:
            collector.emit([number], stream="done")
        else:
            collector.emit([number - 1], stream="again")


class Back(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


class Twice(Bolt):
    """Emits two tuples for each circulating one, with explicit acks."""

    output_fields = "n long"

    def execute(self, tup, collector):
        if tup[0]:
            for _ in range(2):
                collector.emit([tup[0] - 1], anchors=tup)
        collector.ack(tup)


class End(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


def circle(spout: Source | FeederSpout, parallelism: int = 2) -> Topology:
    """A cycle of two bolts; finished tuples leave it."""
    builder = TopologyBuilder("circle")
    builder.set_spout("s", spout)
    down = builder.set_bolt("down", CountDown(), parallelism)
    down.shuffle_grouping("s").fields_grouping("back", "n")
    builder.set_bolt("back", Back(), parallelism).shuffle_grouping("down", "again")
    builder.set_bolt("end", End()).shuffle_grouping("down", "done")
    return builder.build()


def loop(spout: Source | FeederSpout) -> Topology:
    """A bolt that subscribes to itself."""
    builder = TopologyBuilder("loop")
    builder.set_spout("s", spout)
    builder.set_bolt("twice", Twice(), parallelism=2).shuffle_grouping("s").shuffle_grouping(
        "twice"
    )
    return builder.build()


def numbers(*fed: int) -> FeederSpout:
    feeder = FeederSpout(fields="n long")
    for number in fed:
        feeder.feed([number], number)
    return feeder


def test_a_cycle_ends_by_itself_and_its_trees_are_acked() -> None:
    with LocalCluster(circle(numbers(0, 1, 30))) as cluster:
        cluster.run_until_idle()
        assert cluster.acked("s") == [0, 1, 30]
        assert cluster.read_tuples("end") == [[0], [0], [0]]
        assert len(cluster.read_tuples("back")) == 31
        assert cluster.pending("s") == 0


def test_what_fails_on_its_way_round_fails_its_message_and_no_other() -> None:
    with LocalCluster(circle(numbers(5, -1))) as cluster:
        cluster.run_until_idle()
        assert (cluster.acked("s"), cluster.failed("s")) == ([5], [-1])


def test_a_bolt_may_subscribe_to_itself() -> None:
    with LocalCluster(loop(numbers(10))) as cluster:
        cluster.run_until_idle()
        assert cluster.acked("s") == [10]
        assert len(cluster.read_tuples("twice")) == 2**11 - 2


def test_a_cycle_that_never_ends_is_a_clear_error_of_the_kit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_engine, "_MOST_STEPS", 50)
    with (
        LocalCluster(circle(numbers(1_000))) as cluster,
        pytest.raises(LocalClusterError, match="still circulate after 50"),
    ):
        cluster.run_until_idle()


def test_what_goes_round_never_waits_for_room() -> None:
    """Each inbox holds one tuple.

    A task that waited would wait for ever, since one thread runs them all.
    """
    pump = Pump(circle(Source("n long")), inboxes=MemoryInboxes(Bounds(tuples=1, bytes=1)))
    roots = []
    for _ in range(3):
        roots += pump.feed([20])
        pump.run()
    assert pump.acked == roots


def test_a_task_of_a_cycle_that_dies_repeats_nothing_that_was_committed() -> None:
    pump = Pump(circle(Source("n long")))
    roots = pump.feed([9], [4])
    pump.send()
    for _ in range(40):
        pump.take_over()
        for attempt in pump.attempts.values():
            attempt.turn()
    pump.run()
    assert sorted(pump.acked) == sorted(roots)


def test_only_the_tasks_of_the_cycle_are_never_waited_for() -> None:
    topology = circle(Source("n long"), parallelism=1)
    [down], [back], [end] = (topology.task_ids(bolt) for bolt in ("down", "back", "end"))
    assert cycle_of(topology, down) == {back}
    assert cycle_of(topology, back) == {down}
    assert cycle_of(topology, end) == frozenset()
    assert has_cycle(topology)
    assert has_cycle(loop(Source("n long")))


def test_cycles_are_looked_for_bolt_by_bolt_and_not_task_by_task(monkeypatch) -> None:
    """Every task looks at its start: those of 200 bolts in a row took half a minute of CPU."""
    builder = TopologyBuilder("wide")
    builder.set_spout("source", Source("n long"))
    layers = [["source"], *([f"{layer}-{n}" for n in range(4)] for layer in range(8))]
    for before, layer in pairwise(layers):
        for name in layer:
            bolt = builder.set_bolt(name, Back(), parallelism=16)
            for source in before:
                bolt.fields_grouping(source, "n")
    topology = builder.build()
    looks = []
    subscribers = Topology.subscribers

    def noted(self, component, stream):
        looks.append(component)
        return subscribers(self, component, stream)

    monkeypatch.setattr(Topology, "subscribers", noted)
    assert cycle_of(topology, topology.task_ids("0-0")[0]) == frozenset()
    assert len(looks) < 200

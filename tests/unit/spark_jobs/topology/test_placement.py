"""Placement: which bolt tasks share a Spark task, and which must not wait for each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pump import Source
from tiercel import BasicBolt, Topology, TopologyBuilder, TopologyError
from tiercel.acker.ids import line_of
from tiercel.spark_jobs.topology.graph import (
    Subscription,
    behind,
    bolt_tasks,
    check_has_bolts,
    cycle_of,
    inboxes_of,
    spread,
)
from tiercel.spark_jobs.topology.grouping import Shuffle


class Pass(BasicBolt):
    output_streams = {"default": "word string", "back": "word string"}  # noqa: RUF012 - as users write it


def heard_back(topology: Topology, bolt: str, source: str) -> Topology:
    """Build a topology in which ``bolt`` also receives the second stream of ``source``."""
    spec = topology.bolts[bolt]
    back = Subscription(component=source, stream="back", grouping=Shuffle())
    changed = replace(spec, subscriptions=(*spec.subscriptions, back))
    return replace(topology, bolts={**topology.bolts, bolt: changed})


def looped() -> Topology:
    """Build spout (1) -> a (2, 3) -> b (4) -> c (5), and back from c to a."""
    builder = TopologyBuilder("looped")
    builder.set_spout("spout", Source())
    builder.set_bolt("a", Pass(), 2).shuffle_grouping("spout")
    builder.set_bolt("b", Pass()).shuffle_grouping("a")
    builder.set_bolt("c", Pass()).shuffle_grouping("b")
    builder.set_bolt("d", Pass()).shuffle_grouping("c")
    return heard_back(builder.build(), "a", "c")


def test_who_receives_from_whom() -> None:
    topology = looped()
    assert bolt_tasks(topology) == [2, 3, 4, 5, 6]
    assert inboxes_of(topology) == [2, 3, 4, 5, 6, line_of([2, 3])]
    assert behind(topology, 1) == {line_of([2, 3])}
    assert behind(topology, 2) == {4}
    assert behind(topology, 5) == {line_of([2, 3]), 6}
    assert behind(topology, 6) == frozenset()


def test_within_a_cycle_no_task_waits_for_room_and_on_the_way_out_it_does() -> None:
    topology = looped()
    assert cycle_of(topology, 2) == {4}
    assert cycle_of(topology, 4) == {5}
    assert cycle_of(topology, 5) == {line_of([2, 3])}
    assert cycle_of(topology, 6) == frozenset()


def test_a_bolt_that_hears_itself_is_a_cycle() -> None:
    builder = TopologyBuilder("self")
    builder.set_spout("spout", Source())
    builder.set_bolt("a", Pass(), 2).shuffle_grouping("spout")
    topology = heard_back(builder.build(), "a", "a")
    assert cycle_of(topology, 2) == cycle_of(topology, 3) == {line_of([2, 3])}


def test_without_a_way_back_every_inbox_is_bounded() -> None:
    builder = TopologyBuilder("line")
    builder.set_spout("spout", Source())
    builder.set_bolt("a", Pass()).shuffle_grouping("spout")
    builder.set_bolt("b", Pass()).shuffle_grouping("a").shuffle_grouping("spout")
    topology = builder.build()
    assert {cycle_of(topology, task) for task in bolt_tasks(topology)} == {frozenset()}


@given(st.lists(st.integers(1, 1000), unique=True, min_size=1), st.integers(-1, 50))
def test_each_task_has_one_host_and_hosts_differ_by_one_task_at_most(
    tasks: list[int], slots: int
) -> None:
    hosts = spread(tasks, slots)
    assert sorted(task for host in hosts for task in host) == sorted(tasks)
    assert len(hosts) == max(1, min(slots, len(tasks)))
    sizes = {len(host) for host in hosts}
    assert max(sizes) - min(sizes) <= 1


def test_the_tasks_of_a_bolt_are_on_as_many_hosts_as_there_are() -> None:
    assert spread([2, 3, 4, 5, 6, 7], 3) == ((2, 5), (3, 6), (4, 7))


def test_a_topology_without_a_bolt_is_refused_with_what_to_do() -> None:
    builder = TopologyBuilder("empty")
    builder.set_spout("spout", Source())
    with pytest.raises(TopologyError, match=r"'empty' has no bolt: add one with set_bolt"):
        check_has_bolts(builder.build())

"""The longest path cuts a topology into levels; tasks find their lanes."""

from __future__ import annotations

import pickle

import pytest

from spark_jobs import BasicBolt, TopologyBuilder, TopologyError
from spark_jobs.levels import Plan, plan_topology
from tests.pump import Source


class Pass(BasicBolt):
    output_fields = "word string"


def plan(bolts: dict[str, tuple[int, list[str]]], max_lanes: int = 4) -> Plan:
    builder = TopologyBuilder("levels")
    builder.set_spout("spout", Source())
    for name, (parallelism, sources) in bolts.items():
        declarer = builder.set_bolt(name, Pass(), parallelism=parallelism)
        for source in sources:
            declarer.shuffle_grouping(source)
    return plan_topology(builder.build(), max_lanes)


def level_of(plan: Plan, component: str) -> int:
    return plan.places[plan.topology.task_ids(component)[0]].level


def test_a_bolt_is_one_level_below_the_deepest_of_its_sources() -> None:
    cut = plan({"join": (1, ["spout", "right"]), "left": (1, ["spout"]), "right": (1, ["left"]), "side": (1, ["spout"])})
    levels = {component: level_of(cut, component) for component in cut.topology.bolts}
    assert levels == {"join": 3, "left": 1, "right": 2, "side": 1}
    assert cut.levels == 3


def test_a_level_has_a_lane_a_task_and_no_more_than_there_are_cores() -> None:
    cut = plan({"a": (3, ["spout"]), "b": (2, ["spout"]), "c": (2, ["a"])}, max_lanes=4)
    assert cut.level_tasks == (5, 2)
    assert (cut.lanes(1), cut.lanes(2), cut.relay_lanes) == (4, 2, 5)


def test_the_tasks_of_a_level_take_turns_over_its_lanes() -> None:
    cut = plan({"first": (1, ["spout"]), "a": (3, ["first"]), "b": (2, ["first"])}, max_lanes=2)
    tasks = [*cut.topology.task_ids("a"), *cut.topology.task_ids("b")]
    assert [cut.lane_after(1, task) for task in tasks] == [0, 1, 0, 1, 0]


def test_spouts_need_not_know_the_number_of_cores_to_find_a_relay_lane() -> None:
    bolts = {"a": (3, ["spout"]), "b": (2, ["a"]), "c": (1, ["spout", "b"])}
    one, many = plan(bolts, max_lanes=1), plan(bolts, max_lanes=64)
    for task in one.places:
        assert one.relay_lane(task) == many.relay_lane(task)
        assert 0 <= one.relay_lane(task) < one.relay_lanes


def test_a_chunk_for_a_later_level_passes_through_a_lane_that_exists() -> None:
    cut = plan({"a": (1, ["spout"]), "b": (2, ["a"]), "c": (5, ["b", "spout"])}, max_lanes=8)
    for task in cut.topology.task_ids("c"):
        assert 0 <= cut.lane_after(1, task) < cut.lanes(2)


def test_twelve_levels_deep_is_no_trouble() -> None:
    bolts = {f"b{i}": (1, [f"b{i - 1}" if i else "spout"]) for i in range(12)}
    assert plan(dict(reversed(bolts.items()))).levels == 12


def test_a_topology_without_a_bolt_has_nothing_to_run() -> None:
    with pytest.raises(TopologyError, match="'levels' has no bolt: add one with set_bolt"):
        plan({})


def test_a_plan_travels() -> None:
    cut = plan({"a": (3, ["spout"])})
    assert pickle.loads(pickle.dumps(cut)).places == cut.places

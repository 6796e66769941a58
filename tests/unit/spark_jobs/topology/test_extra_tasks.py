"""Extra tasks: their ids, the bolts that take them, and the Spark tasks that they share."""

from __future__ import annotations

import pytest

from tests.support.pump import Source
from tiercel import BasicBolt, StatefulBolt, TopologyBuilder, WindowedBolt, tumbling
from tiercel.acker.ids import line_of
from tiercel.spark_jobs.running.chain import tasks_in_row
from tiercel.spark_jobs.topology.bolt_settings import (
    extra_hosts,
    spreads_by_run,
    takes_extra_tasks,
)
from tiercel.spark_jobs.topology.graph import extra_task, line_at, spread


class Same(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


class Keeps(StatefulBolt):
    pass


class Windows(WindowedBolt):
    window = tumbling(10)

    def execute(self, window, collector):
        pass


def built(bolt=None, group="shuffle_grouping", fields=(), **settings):
    builder = TopologyBuilder("t")
    builder.set_spout("words", Source("word string"))
    subscriber = builder.set_bolt("bolt", bolt or Same(), **{"parallelism": 2, **settings})
    getattr(subscriber, group)("words", *fields)
    return builder.build()


def test_an_extra_task_belongs_to_the_bolt_and_the_line_of_its_base():
    topology = built()
    extra = extra_task(3, 2)
    assert topology.component_of(extra) == "bolt"
    assert line_at(topology, extra) == line_at(topology, 3) == line_of([2, 3])
    indices = [topology.context_of(each).task_index for each in (2, 3, extra_task(2, 1), extra)]
    assert indices == [0, 1, 2, 5], "each its own"
    assert topology.context_of(extra).parallelism == 2


@pytest.mark.parametrize(
    "group", ["shuffle_grouping", "none_grouping", "local_or_shuffle_grouping"]
)
def test_a_bolt_that_any_task_may_serve_takes_extra_tasks(group):
    assert takes_extra_tasks(built(group=group), "bolt")


@pytest.mark.parametrize(
    ("group", "fields", "settings"),
    [
        ("fields_grouping", ["word"], {}),
        ("all_grouping", [], {}),
        ("global_grouping", [], {}),
        ("shuffle_grouping", [], {"parallelism": 1}),
        ("shuffle_grouping", [], {"bolt": Keeps()}),
        ("shuffle_grouping", [], {"bolt": Windows()}),
        ("shuffle_grouping", [], {"config": {"tick_tuple_freq_secs": 1}}),
        ("fields_grouping", ["word"], {"config": {"ordered_by": "word"}}),
    ],
)
def test_a_bolt_whose_tasks_are_named_or_keep_something_takes_none(group, fields, settings):
    assert not takes_extra_tasks(built(group=group, fields=fields, **settings), "bolt")


def test_only_a_run_spreads_several_tasks_that_take_no_extra_ones():
    assert not spreads_by_run(built())
    assert not spreads_by_run(built(parallelism=1))
    assert spreads_by_run(built(group="fields_grouping", fields=["word"]))


def test_further_spark_tasks_are_like_the_first_ones_in_turn():
    topology = built(parallelism=4)
    hosts = spread([2, 3, 4, 5], 2)
    assert hosts == ((2, 4), (3, 5))
    assert extra_hosts(topology, hosts, 1, 3) == [
        (extra_task(2, 1), extra_task(4, 1)),
        (extra_task(3, 2), extra_task(5, 2)),
        (extra_task(2, 3), extra_task(4, 3)),
    ]
    assert extra_hosts(topology, hosts, 4, 1) == [(extra_task(3, 4), extra_task(5, 4))]


def test_where_no_bolt_takes_extra_tasks_there_are_none():
    topology = built(group="fields_grouping", fields=["word"])
    assert extra_hosts(topology, ((2,), (3,)), 1, 2) == []


def test_a_row_behind_an_extra_task_has_tasks_of_its_own():
    builder = TopologyBuilder("t")
    builder.set_spout("words", Source("word string"))
    builder.set_bolt("first", Same(), parallelism=2).shuffle_grouping("words")
    builder.set_bolt("second", Same(), parallelism=2).shuffle_grouping("first")
    topology = builder.build()
    assert tasks_in_row(topology, 3) == [5]
    assert tasks_in_row(topology, extra_task(3, 1)) == [extra_task(5, 1)]

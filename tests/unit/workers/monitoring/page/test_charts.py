"""The page's graph and chart, as ECharts is told to draw them."""

from datetime import UTC, datetime

from tiercel.acker.ledger import Census
from tiercel.acker.metrics.windows import Counted
from tiercel.workers.control.graph import Component, Edge, Graph
from tiercel.workers.monitoring.history import DepthSample
from tiercel.workers.monitoring.overview import overview_of
from tiercel.workers.monitoring.page.charts import (
    COLUMN_PX,
    ROW_PX,
    depth_options,
    graph_options,
    graph_size,
    layers,
)
from tiercel.workers.monitoring.raw import Raw


def overview(*edges, spouts=("lines",), rates=None):
    bolts = dict.fromkeys(edge.target for edge in edges)
    graph = Graph(
        spouts=tuple(Component(name=name, tasks=(1,)) for name in spouts),
        bolts=tuple(Component(name=name, tasks=(2,)) for name in bolts),
        edges=edges,
        shards=1,
    )
    nothing = Census(pending=0, memory_bytes=0, feed_entries=0, feed_lag_s=0)
    raw = Raw(
        graph=graph, counted=Counted(counts={}, seconds=0), present={}, state=None, driver=False,
        inboxes={},
        census=nothing, errors=[], rates=rates or {},
    )  # fmt: skip
    return overview_of("t", raw)


def edge(source, target, stream="default"):
    return Edge(source=source, stream=stream, target=target, grouping="shuffle")


DIAMOND = (
    edge("lines", "a"),
    edge("lines", "b"),
    edge("a", "end"),
    edge("b", "end"),
    edge("lines", "end", "errors"),
)


def test_each_bolt_lies_below_all_that_it_subscribes_to():
    assert layers(overview(*DIAMOND)) == [["lines"], ["a", "b"], ["end"]]
    assert layers(overview(*reversed(DIAMOND))) == [["lines"], ["b", "a"], ["end"]]
    assert graph_size(overview(*DIAMOND)) == (2 * COLUMN_PX, 3 * ROW_PX)


def test_bolts_lie_below_their_sources_and_not_across():
    crossed = (edge("left", "l1"), edge("right", "r1"), edge("r1", "r2"), edge("l1", "l2"))
    assert layers(overview(*crossed, spouts=("left", "right"))) == [
        ["left", "right"],
        ["l1", "r1"],
        ["l2", "r2"],
    ]


def test_on_a_cycle_the_edges_that_close_it_go_upwards_and_are_bent():
    cycle = (
        edge("lines", "a"),
        edge("a", "b"),
        edge("b", "a", "again"),
        edge("b", "end"),
        edge("end", "end", "more"),
    )
    seen = overview(*cycle)
    assert layers(seen) == [["lines"], ["a"], ["b"], ["end"]]
    links = graph_options(seen)["series"][0]["links"]
    bent = {(link["source"], link["target"]) for link in links if link["lineStyle"]["curveness"]}
    assert bent == {("b", "a"), ("end", "end")}


def test_edges_show_what_goes_over_them_and_are_bent_round_what_they_pass():
    rates = {"a": {2: {'from:["lines", "default"]': 12_345}}}
    links = graph_options(overview(*DIAMOND, rates=rates))["series"][0]["links"]
    labels = {(link["source"], link["target"]): link["label"]["formatter"] for link in links}
    assert labels["lines", "a"] == "12/s"
    assert labels["lines", "b"] == ""
    assert labels["lines", "end"] == "errors"
    bent = {(link["source"], link["target"]) for link in links if link["lineStyle"]["curveness"]}
    assert bent == {("lines", "end")}


def test_a_chart_has_a_gap_where_nobody_knows():
    then = datetime(2024, 1, 1, tzinfo=UTC)
    samples = [
        DepthSample(at=then, depths={"q ready": 1}),
        DepthSample(at=then, depths={"q ready": None, "waiting tuples": 2}),
    ]
    lines = {
        line["name"]: [depth for _, depth in line["data"]]
        for line in depth_options(samples)["series"]
    }
    assert lines == {"q ready": [1, None], "waiting tuples": [None, 2]}

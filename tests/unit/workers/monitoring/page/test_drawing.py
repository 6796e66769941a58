"""The graph of the page, laid out from left to right."""

from datetime import UTC, datetime, timedelta

from tests.support.overviews import bolt_counts, edge, overview
from tiercel.acker.inbox.contract import InboxFigures
from tiercel.acker.metrics.contract import Counted
from tiercel.workers.control.presence import Presence
from tiercel.workers.monitoring.page.drawing import (
    CHARTS,
    GAP_Y,
    LINES,
    NODE_HEIGHT,
    NODE_WIDTH,
    POINTS,
    chart_of,
    graph_of,
    layers,
)
from tiercel.workers.monitoring.sampler import Sample

KINDS = {kind.key: kind for kind in CHARTS}
THEN = datetime(2024, 1, 1, tzinfo=UTC)


def lines(key, samples):
    return {line["name"]: line["values"] for line in chart_of(KINDS[key], samples)["lines"]}


def test_a_chart_has_a_gap_where_nothing_is_known():
    samples = [
        Sample(at=THEN, queues={"q ready": 1}),
        Sample(at=THEN, queues={"q ready": None, "other ready": 2}),
    ]
    assert lines("queues", samples) == {"q ready": [1, None], "other ready": [None, 2]}


def test_without_a_look_there_is_no_line():
    for kind in CHARTS:
        assert chart_of(kind, ()) == {"times": [], "lines": []}


def test_of_many_samples_few_points_are_sent_and_no_peak_is_lost():
    samples = [
        Sample(at=THEN + timedelta(seconds=at), latency={"p99": 999.0 if at == 77 else 1.0})
        for at in range(660)
    ]
    chart = chart_of(KINDS["latency"], samples)
    assert len(chart["times"]) == len(chart["lines"][0]["values"]) <= POINTS
    assert max(chart["lines"][0]["values"]) == 999.0
    assert chart["times"][-1] == round(samples[-1].at.timestamp() * 1000)


def test_of_many_lines_the_highest_are_shown():
    samples = [Sample(at=THEN, queues={f"q{at} ready": at for at in range(50)})]
    assert list(lines("queues", samples)) == [f"q{at} ready" for at in range(50 - LINES, 50)]


def test_failures_have_one_colour_and_no_other_line_of_the_chart_has_it():
    samples = [Sample(at=THEN, throughput={"acked": 1.0, "failed": 0.0})]
    tones = [line["tone"] for line in chart_of(KINDS["throughput"], samples)["lines"]]
    assert len(set(tones)) == 2


DIAMOND = (
    edge("lines", "a"),
    edge("lines", "b"),
    edge("a", "end"),
    edge("b", "end"),
    edge("lines", "end", "errors"),
)
INBOX = InboxFigures(tuples=0, bytes=0, adopted=True, oldest_s=0.0, attempts=1, seen_s=0.4)


def nodes(seen):
    return {node["name"]: node for node in graph_of(seen)["nodes"]}


def test_each_bolt_lies_to_the_right_of_all_that_it_subscribes_to():
    assert layers(overview(*DIAMOND)) == [["lines"], ["a", "b"], ["end"]]
    assert layers(overview(*reversed(DIAMOND))) == [["lines"], ["b", "a"], ["end"]]
    found = nodes(overview(*DIAMOND))
    assert found["lines"]["x"] < found["a"]["x"] == found["b"]["x"] < found["end"]["x"]
    assert found["b"]["y"] - found["a"]["y"] == NODE_HEIGHT + GAP_Y
    assert found["lines"]["y"] == found["end"]["y"]


def test_bolts_lie_beside_their_sources_and_not_across():
    crossed = (edge("left", "l1"), edge("right", "r1"), edge("r1", "r2"), edge("l1", "l2"))
    assert layers(overview(*crossed, spouts=("left", "right"))) == [
        ["left", "right"],
        ["l1", "r1"],
        ["l2", "r2"],
    ]


def test_all_of_fifty_components_lie_within_the_drawing_and_none_on_another():
    chain = [edge("lines" if at < 8 else f"b{at - 8}", f"b{at}") for at in range(49)]
    graph = graph_of(overview(*chain))
    places = [(node["x"], node["y"]) for node in graph["nodes"]]
    assert len(set(places)) == 50
    for x, y in places:
        assert 0 <= x <= graph["width"] - NODE_WIDTH
        assert 0 <= y <= graph["height"] - NODE_HEIGHT


def test_a_spout_alone_is_a_graph_too():
    graph = graph_of(overview())
    assert [node["name"] for node in graph["nodes"]] == ["lines"]
    assert graph["width"] > NODE_WIDTH
    assert graph["height"] > NODE_HEIGHT


def test_on_a_cycle_the_edges_that_close_it_go_round_below():
    cycle = (
        edge("lines", "a"),
        edge("a", "b"),
        edge("b", "a", "again"),
        edge("b", "end"),
        edge("end", "end", "more"),
    )
    seen = overview(*cycle)
    assert layers(seen) == [["lines"], ["a"], ["b"], ["end"]]
    graph = graph_of(seen)
    low = [each["label"] for each in graph["edges"] if each["y"] > NODE_HEIGHT]
    assert low == ["again", "more"]
    assert all(each["y"] < graph["height"] for each in graph["edges"])


def test_edges_show_what_goes_over_them():
    rates = {"a": {2: {'from:["lines", "default"]': 12_345}}}
    edges = graph_of(overview(*DIAMOND, rates=rates))["edges"]
    assert [each["label"] for each in edges] == ["12/s", "", "", "", "errors"]
    assert [each["flows"] for each in edges] == [True, False, False, False, False]
    assert [each["title"] for each in edges] == ["", "", "", "", "errors"], "the whole name"


def test_a_bolt_has_the_colour_of_its_capacity_and_says_rate_latency_and_failures():
    present = {1: Presence(active=True, pending=7)}
    for share, tone in ((0.1, "calm"), (0.6, "engaged"), (0.95, "hot")):
        rates = {"a": {2: bolt_counts(executed=4_000, busy=share)}}
        seen = overview(
            edge("lines", "a"), rates=rates, present=present, inboxes={2: INBOX}, driver=True
        )
        assert nodes(seen)["a"]["tone"] == tone
    assert nodes(seen)["a"]["lines"] == ["4.0/s · 238 ms", "busy 95%"]
    assert nodes(seen)["lines"]["lines"] == ["0.0/s", "7 in flight"]
    failing = {"a": {2: bolt_counts(executed=4_000, busy=0.1) | {"failed": 500}}}
    seen = overview(
        edge("lines", "a"), rates=failing, present=present, inboxes={2: INBOX}, driver=True
    )
    assert nodes(seen)["a"]["failing"]
    gone = overview(edge("lines", "a"), present=present, driver=True)
    assert nodes(gone)["a"]["tone"] == "gone", "no process runs it"
    assert {node["tone"] for node in nodes(overview(edge("lines", "a"))).values()} == {"off"}


def test_a_component_that_stands_still_shows_no_latency_of_earlier_messages():
    before = {
        "lines": {1: {"acked": 10, "complete_us": 190_000}},
        "a": {2: bolt_counts(executed=10, busy=0.1)},
    }
    seen = overview(edge("lines", "a"), counted=Counted(counts=before, seconds=600))
    assert [nodes(seen)[name]["lines"][0] for name in ("lines", "a")] == ["0.0/s", "0.0/s"]


def test_a_long_name_is_cut_and_what_a_terminal_would_obey_is_escaped():
    name = "\x1b[2J" + "x" * 300
    [node] = list(graph_of(overview(spouts=(name,)))["nodes"])
    assert node["name"] == name
    assert len(node["label"]) == 22
    assert "\x1b" not in node["label"] + node["title"]

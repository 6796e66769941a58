"""Processes of a topology, where they run, and its current rate."""

from datetime import UTC, datetime

from tests.support.overviews import bolt_counts, edge, overview
from tiercel.acker.ids import line_of
from tiercel.acker.inbox.contract import InboxFigures
from tiercel.acker.metrics.contract import bucket_of
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.presence import Presence
from tiercel.workers.control.registry import Component, Graph
from tiercel.workers.monitoring.rows import inboxes_in

SINCE = datetime(2024, 1, 1, tzinfo=UTC)


def place(pid):
    return Whereabouts(host="node-3", pid=pid, since=SINCE)


def inbox(seen_s=0.4, place=""):
    return InboxFigures(
        tuples=0, bytes=0, adopted=True, oldest_s=0.0, attempts=1, seen_s=seen_s, place=place
    )


def test_inboxes_are_those_of_tasks_of_lines_and_of_extra_tasks_that_have_counted():
    split, count = Component(name="split", tasks=(4, 5)), Component(name="count", tasks=(6,))
    counts = {"split": {4: {}, 1_000_004: {}}, "count": {6: {}}, "gone": {1_000_009: {}}}
    graph = Graph(spouts=(), bolts=(split, count), edges=(), shards=1)
    assert inboxes_in(graph, counts) == [4, 5, 6, line_of((4, 5)), 1_000_004]


def test_each_process_is_named_once_with_all_that_it_runs():
    seen = overview(
        edge("lines", "split"),
        edge("split", "sink"),
        driver=True,
        driver_at=place(10),
        present={1: Presence(active=True, pending=0, whereabouts=place(11))},
        inboxes={2: inbox(place=place(12).packed())},
    )
    assert [(row.place.pid, row.runs) for row in seen.processes] == [
        (10, "the driver"),
        (11, "lines[1]"),
        (12, "split[2], sink[2]"),
    ]
    assert seen.tasks[0].place == place(12)
    assert seen.driver_at == place(10)


def test_an_older_process_that_does_not_say_where_it_is_runs_all_the_same():
    seen = overview(
        edge("lines", "split"), driver=True, present={1: Presence(active=True, pending=0)}
    )
    [row] = seen.processes
    assert (row.place, row.runs) == (None, "the driver, lines[1]")


def test_a_process_that_fell_silent_is_nowhere():
    seen = overview(edge("lines", "split"), inboxes={2: inbox(99.0, place(12).packed())})
    assert seen.processes == ()
    assert seen.tasks[0].place is None


def test_a_spout_task_says_what_it_does():
    presence = Presence(active=False, pending=3, oldest_s=2.5)
    [task] = overview(present={1: presence}).spout_tasks
    assert (task.running, task.presence) == (True, presence)
    [task] = overview().spout_tasks
    assert not task.running


def test_the_flow_is_that_of_now_and_of_all_spouts():
    fast = bucket_of(100)
    slow = bucket_of(9_000)
    rates = {
        "lines": {1: {"acked": 12_000, "failed": 500, fast: 990, slow: 10}},
        "split": {2: bolt_counts(executed=4_000, busy=0.8) | {"failed": 250}},
    }
    flow = overview(edge("lines", "split"), rates=rates).flow
    assert flow.known
    assert (flow.acked_a_second, flow.failed_a_second) == (12.0, 0.5)
    assert 95 <= flow.p50_ms <= 105
    assert 95 <= flow.p99_ms <= 105
    assert flow.of("split").latency_ms == 200.0
    assert (flow.of("split").a_second, flow.of("split").failed_a_second) == (4.0, 0.25)


def test_before_the_second_look_nothing_is_known_of_the_flow():
    flow = overview(edge("lines", "split")).flow
    assert (flow.known, flow.p50_ms, flow.of("split").a_second) == (False, None, 0.0)

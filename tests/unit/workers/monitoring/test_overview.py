"""The figures of every view, computed from counters and inboxes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tiercel.acker.ids import line_of
from tiercel.acker.inbox.contract import InboxFigures, OpenWindows
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import ACKER, Counted, ErrorReport, bucket_of, edge_counter
from tiercel.spark_jobs.topology.graph import extra_task
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import UNATTENDED_S, Presence
from tiercel.workers.control.registry import Component, Edge, Graph
from tiercel.workers.monitoring.overview import overview_of
from tiercel.workers.monitoring.page.dialogs import bolt_doing
from tiercel.workers.monitoring.page.sections import tables_of
from tiercel.workers.monitoring.rows import Readings
from tiercel.workers.monitoring.tables import (
    BOLTS,
    TASKS,
    WINDOWS,
    body_text,
    milliseconds,
    per_second,
    size,
    span,
    tasks_named,
    when,
)
from tiercel.workers.monitoring.watcher import RateMeter

EDGE = Edge(source="lines", stream="default", target="split", grouping="shuffle")
GRAPH = Graph(
    spouts=(Component(name="lines", tasks=(1, 2), queue="q"),),
    bolts=(Component(name="split", tasks=(3, 4)),),
    edges=(EDGE,),
    shards=1,
)
NOTHING = Census(pending=0, memory_bytes=0, feed_entries=0, feed_lag_s=0)
S = 1_000_000_000
MS = 1_000_000


def error(component, message):
    return ErrorReport(
        at=datetime(2024, 1, 1, tzinfo=UTC), component=component, task=1, message=message
    )


def inbox(**changed):
    given = {
        "tuples": 0,
        "bytes": 0,
        "adopted": True,
        "oldest_s": 0.0,
        "attempts": 1,
        "seen_s": 0.4,
    }
    return InboxFigures(**{**given, **changed})


def overview(**changed):
    given = {
        "graph": GRAPH,
        "counted": Counted(counts={}, seconds=0),
        "present": {},
        "state": None,
        "driver": False,
        "inboxes": {},
        "census": NOTHING,
        "errors": [],
    }
    return overview_of("t", Readings(**{**given, **changed}))


def test_extra_tasks_are_shown_while_a_process_runs_them():
    mine, gone, other = (extra_task(task, 1) for task in (3, 4, 9))
    counts = {"split": {3: {"executed": 5}, mine: {"executed": 7}, gone: {"executed": 1}}}
    seen = overview(
        counted=Counted(counts=counts, seconds=10),
        inboxes={
            3: inbox(),
            4: inbox(),
            line_of([3, 4]): inbox(tuples=6, seen_s=None),
            mine: inbox(tuples=2),
            gone: inbox(seen_s=UNATTENDED_S + 1),
            other: inbox(),
        },
    )
    assert [(row.component, row.task, row.counts["executed"]) for row in seen.tasks] == [
        ("split", 3, 5),
        ("split", 4, 0),
        ("split", mine, 7),
    ]
    [bolt] = seen.bolts
    assert (bolt.tasks, bolt.counts["executed"], bolt.waiting, bolt.unattended) == (3, 13, 8, ())


def test_a_topology_that_never_ran_is_all_zeros():
    seen = overview()
    assert (seen.state, seen.seconds) == ("not running", 0)
    assert (seen.spouts[0].counts["acked"], seen.spouts[0].complete_ms, seen.spouts[0].running) == (
        0,
        None,
        0,
    )
    assert (seen.bolts[0].capacity, seen.bolts[0].execute_ms, seen.bolts[0].process_ms) == (
        0,
        None,
        None,
    )


def test_a_spout_shows_the_sum_of_its_tasks_and_the_mean_over_all_that_were_acked():
    slow = bucket_of(900)
    fast = bucket_of(100)
    counts = {
        "lines": {
            1: {"emitted": 10, "transferred": 20, "acked": 1, "complete_us": 900_000, slow: 1},
            2: {
                "emitted": 5,
                "acked": 3,
                "complete_us": 300_000,
                fast: 3,
                "failed": 4,
                "timeout": 3,
                "released": 2,
            },
        }
    }
    present = {
        1: Presence(active=True, pending=7, oldest_s=1.5, in_back_off=2),
        2: Presence(active=True, pending=1, oldest_s=9),
    }
    seen = overview(counted=Counted(counts=counts, seconds=60), present=present, driver=True)
    [row] = seen.spouts
    names = ("emitted", "transferred", "acked", "failed", "timeout", "released")
    assert [row.counts[name] for name in names] == [15, 20, 4, 4, 3, 2]
    assert row.complete_ms == 300
    assert row.complete_p99_ms == pytest.approx(900, rel=0.05)
    assert (row.tasks, row.running, row.pending, row.oldest_s) == (2, 2, 8, 9)
    assert (seen.own.oldest_pending_s, seen.acker.timeouts) == (9, 3)
    assert (seen.own.in_back_off, sum(spout.in_back_off for spout in seen.spouts)) == (2, 2)


def test_the_capacity_of_a_bolt_is_that_of_its_busiest_task():
    counts = {
        "split": {
            3: {"executed": 4, "execute_ns": 6 * S, "acked": 2, "process_ns": 30 * MS},
            4: {"executed": 4, "execute_ns": 2 * S, "failed": 1},
        }
    }
    [row] = overview(counted=Counted(counts=counts, seconds=10)).bolts
    assert (row.capacity, row.execute_ms, row.process_ms) == (0.6, 1000, 15)
    assert [row.counts[name] for name in ("executed", "acked", "failed")] == [8, 2, 1]


def test_a_task_that_executes_all_the_time_has_a_capacity_of_1_in_the_window_and_now():
    counts = {
        "split": {
            3: {"executed": 60, "execute_ns": 59 * S},
            4: {"executed": 600, "execute_ns": 20 * S},
        }
    }
    rates = {"split": {3: {"execute_ns": 998 * S}, 4: {"execute_ns": 0}}}
    seen = overview(counted=Counted(counts=counts, seconds=60), rates=rates)
    busy, idle = seen.tasks
    assert (busy.capacity, busy.busy, seen.bolts[0].capacity) == pytest.approx(
        (0.983, 0.998, 0.983), abs=0.001
    )
    assert (idle.capacity, idle.busy) == pytest.approx((0.333, 0), abs=0.001)


def test_a_share_is_never_above_1_although_the_first_report_is_of_the_second_before():
    counts = {"split": {3: {"execute_ns": S}}}
    seen = overview(
        counted=Counted(counts=counts, seconds=0.5), rates={"split": {3: {"execute_ns": 1500 * S}}}
    )
    assert (seen.tasks[0].capacity, seen.tasks[0].busy) == (1, 1)


def test_each_task_shows_what_waits_for_it_its_steps_and_its_restarts():
    counts = {
        "split": {
            3: {"executed": 8, "steps": 4, "step_ns": 20 * MS},
            4: {"steps": 1, "step_ns": 5 * MS},
        }
    }
    rates = {"split": {3: {"steps": 2_000}, 4: {"steps": 500}}}
    inboxes = {
        3: inbox(tuples=700, bytes=4096, oldest_s=2.5, attempts=3),
        4: inbox(tuples=30, bytes=100, oldest_s=9.0),
    }
    seen = overview(counted=Counted(counts=counts, seconds=10), rates=rates, inboxes=inboxes)
    first, second = seen.tasks
    assert (first.component, first.task, second.task) == ("split", 3, 4)
    assert (first.waiting, first.waiting_bytes, first.oldest_s, first.restarts) == (
        700,
        4096,
        2.5,
        2,
    )
    assert (first.counts["steps"], first.steps_a_second, first.step_ms) == (4, 2, 5)
    assert first.counts["executed"] == 8
    [bolt] = seen.bolts
    assert (bolt.waiting, bolt.oldest_s, bolt.restarts, bolt.unattended) == (730, 9, 2, ())
    assert (bolt.steps_a_second, bolt.step_ms) == (2.5, 5)
    assert (seen.own.waiting, seen.own.oldest_waiting_s) == (730, 9)


def test_a_bolt_s_waiting_tuples_are_of_its_line_too():
    inboxes = {
        3: inbox(tuples=7, oldest_s=0.5),
        4: inbox(tuples=3, oldest_s=0.1),
        line_of([3, 4]): inbox(tuples=100, oldest_s=4.0),
    }
    seen = overview(inboxes=inboxes)
    [bolt] = seen.bolts
    assert (bolt.waiting, bolt.oldest_s) == (110, 4)
    assert [task.waiting for task in seen.tasks] == [7, 3]
    assert seen.own.waiting == 110


def test_a_bolt_shows_how_many_tuples_wait_for_a_retry_and_how_many_attempts_failed_before():
    counts = {"split": {3: {"executed": 9, "acked": 4, "retried": 5}}}
    inboxes = {3: inbox(tuples=7, retrying=2), 4: inbox(tuples=3, retrying=1)}
    seen = overview(inboxes=inboxes, counted=Counted(counts=counts, seconds=60))
    [bolt] = seen.bolts
    assert (bolt.waiting, bolt.retrying, bolt.counts["retried"], bolt.counts["failed"]) == (
        10,
        3,
        5,
        0,
    )
    assert "3 failed tuples wait for a retry" in bolt_doing(bolt, seen)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def windows(number, tuples, seconds=None):
    """Open windows with a watermark this many seconds after noon."""
    at = None if seconds is None else round((NOON.timestamp() + seconds) * 1e6)
    return OpenWindows(number=number, tuples=tuples, watermark_us=at)


def test_a_windowed_bolt_shows_its_open_windows_and_the_watermark_that_is_furthest_behind():
    mine = extra_task(3, 1)
    inboxes = {
        3: inbox(windows=windows(1_000, 70_000, 10.25)),
        4: inbox(windows=windows(234, 5, 12), oldest_s=61.0),
        mine: inbox(windows=windows(1, 1)),
    }
    seen = overview(inboxes=inboxes, at=NOON + timedelta(seconds=17.75))
    [row] = seen.windows
    assert (row.open, row.held, row.watermark_lag_s) == (1_235, 70_006, 7.5)
    assert row.watermark == NOON + timedelta(seconds=10.25)
    assert row.watermark_s == NOON.timestamp() + 10.25
    [cells] = tables_of(seen)[WINDOWS]
    shown = {"open": "1,235", "held": "70,006", "watermark lag": "7.5 s", "oldest held": "61.0 s"}
    assert shown.items() <= cells.items()
    assert cells["watermark"] == when(row.watermark)


def test_timestamps_that_are_ahead_of_the_clock_make_a_lag_below_zero():
    [row] = overview(inboxes={3: inbox(windows=windows(1, 1, 30))}, at=NOON).windows
    assert row.watermark_lag_s == -30


def test_a_watermark_of_no_time_that_people_know_is_shown_too():
    for far, year in ((-(2**61), 5), (2**61, 3934)):
        odd = OpenWindows(number=1, tuples=1, watermark_us=far)
        seen = overview(inboxes={3: inbox(windows=odd)})
        assert seen.windows[0].watermark.year == year
        assert tables_of(seen)[WINDOWS][0]["watermark"]


def test_open_windows_of_tasks_without_a_process_or_of_another_run_are_not_shown():
    counts = Counted(counts={"split": {3: {"windows_closed": 7}}}, seconds=60)
    gone = [
        inbox(windows=windows(9, 9, 1), seen_s=UNATTENDED_S + 1),
        inbox(windows=windows(9, 9, 1), adopted=False),
    ]
    inboxes = dict(zip((3, 4), gone, strict=True))
    [row] = overview(inboxes=inboxes, counted=counts).windows
    assert (row.open, row.held, row.watermark, row.watermark_lag_s) == (None, None, None, None)
    assert row.closed == 7
    assert overview(inboxes=inboxes).windows == ()
    # In processing time, and before the first tuple, there is no watermark.
    [row] = overview(inboxes={**inboxes, 3: inbox(windows=windows(0, 0))}).windows
    assert (row.open, row.held, row.watermark_s, row.watermark_lag_s) == (0, 0, None, None)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (inbox(doing_s=125.0), "125.0 s"),
        (inbox(), ""),
        (inbox(doing_s=125.0, seen_s=UNATTENDED_S + 1), ""),
    ],
)
def test_a_call_that_lasts_is_shown_with_its_age_while_its_process_lives(found, shown):
    tables = tables_of(overview(inboxes={3: found, 4: inbox()}))
    assert [row["in one call for"] for row in tables[TASKS]] == [shown, ""]


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (inbox(seen_s=UNATTENDED_S), "now"),
        (inbox(seen_s=UNATTENDED_S + 1), f"{UNATTENDED_S + 1:.1f} s ago"),
        (inbox(seen_s=None, attempts=0), "never"),
        (inbox(adopted=False, seen_s=None, attempts=0), "never"),
        (None, "never"),
    ],
)
def test_a_task_without_a_process_is_named(found, shown):
    seen = overview(inboxes={3: inbox(), **({4: found} if found else {})})
    assert seen.bolts[0].unattended == (() if shown == "now" else (4,))
    tables = tables_of(seen)
    assert [row["process seen"] for row in tables[TASKS]] == ["now", shown]
    assert tables[BOLTS][0]["without a process"] == ("" if shown == "now" else "4")


def test_of_very_many_tasks_those_without_a_process_and_those_behind_are_listed():
    graph = replace(GRAPH, bolts=(Component(name="split", tasks=tuple(range(3, 303))),))
    inboxes = {task: inbox(oldest_s=float(task)) for task in range(3, 303)} | {
        5: inbox(seen_s=None)
    }
    listed = [row["task"] for row in tables_of(overview(graph=graph, inboxes=inboxes))[TASKS]]
    assert (len(listed), listed[:2], listed[-1]) == (100, ["5", "302"], "204")


def test_the_acker_and_the_edges_show_what_is_counted_and_what_is_now():
    arrived = edge_counter("lines", "default")
    counts = {
        ACKER: {0: {"executed": 100, "acked": 40, "failed": 3, "late": 2, "execute_ns": 50 * MS}},
        "split": {3: {arrived: 8}, 4: {arrived: 2}},
    }
    rates = {ACKER: {0: {"executed": 12_000}}, "split": {3: {arrived: 1500}, 4: {arrived: 500}}}
    census = Census(pending=9, memory_bytes=243, feed_entries=1, feed_lag_s=0.5)
    seen = overview(counted=Counted(counts=counts, seconds=10), rates=rates, census=census)
    acker, [edge] = seen.acker, seen.edges
    assert (
        acker.pending,
        acker.memory_bytes,
        acker.counts["executed"],
        acker.updates_a_second,
    ) == (
        9,
        243,
        100,
        12,
    )
    assert [acker.counts[name] for name in ("acked", "failed", "late")] == [40, 3, 2]
    assert acker.update_ms == 0.5
    assert (edge.edge, edge.a_second) == (EDGE, 2)
    assert (seen.own.pending, seen.own.feed_entries, seen.own.feed_lag_s) == (9, 1, 0.5)


def test_each_component_shows_its_newest_error():
    seen = overview(errors=[error("split", "newer"), error("split", "older"), error("lines", "no")])
    assert seen.bolts[0].last_error.message == "newer"
    assert seen.spouts[0].last_error.message == "no"


@pytest.mark.parametrize(
    ("driver", "tasks", "state", "shown"),
    [
        (False, 0, None, "not running"),
        (False, 0, State.DEACTIVATED, "not running"),
        (True, 0, None, "active"),
        (False, 1, State.DEACTIVATED, "deactivated"),
        (True, 1, State.ACTIVE, "active"),
        (True, 1, State.KILLED, "killed"),
    ],
)
def test_the_state_is_what_it_was_told_if_anything_of_it_is_there(driver, tasks, state, shown):
    present = {task: Presence(active=True, pending=0) for task in range(1, tasks + 1)}
    assert overview(driver=driver, present=present, state=state).state == shown


def test_rates_are_of_the_last_ten_seconds_or_a_little_more():
    meter = RateMeter()
    assert meter.look(0, {"a": {1: {"n": 1000}}}) == {}
    assert meter.look(2, {"a": {1: {"n": 1010}}}) == {"a": {1: {"n": 5000}}}
    assert meter.look(12, {"a": {1: {"n": 1010}}, "b": {2: {"n": 5}}}) == {
        "a": {1: {"n": 0}},
        "b": {2: {"n": 500}},
    }


def test_rates_begin_anew_when_the_counters_were_lost():
    meter = RateMeter()
    meter.look(0, {"a": {1: {"n": 1000}}})
    assert meter.look(1, {}) == {}
    assert meter.look(2, {"a": {1: {"n": 3}}}) == {"a": {1: {"n": 3000}}}


def test_a_body_is_shown_as_text_if_it_is_one_and_else_in_hexadecimal():
    euro = "€".encode()
    assert body_text(b"a\tb\r\n<b>", 8) == ("text", "a\tb\n<b>")
    assert body_text("left\u202eright\x7f".encode(), 13) == ("text", r"left\u202eright\x7f")
    assert body_text(b"a" + euro[:2], 4) == ("text", "a\n… and 1 bytes more"), (
        "a character that was cut in two"
    )
    assert body_text(b"a" + euro[:2], 3) == ("binary", f"00000000  61 e2 82 {' ' * 39} a..")
    kind, text = body_text(b"\x00\xff0123456789abcdef", 5000)
    assert kind == "binary"
    assert text.splitlines() == [
        "00000000  00 ff 30 31 32 33 34 35 36 37 38 39 61 62 63 64  ..0123456789abcd",
        f"00000010  65 66 {' ' * 42} ef",
        "… and 4,982 bytes more",
    ]
    assert body_text(b"", 0) == ("text", "")


def test_numbers_are_written_for_people():
    assert [milliseconds(number) for number in (None, 0.0123, 12.34, 1234.5)] == [
        "",
        "0.012",
        "12.3",
        "1,234",
    ]
    assert [per_second(number) for number in (None, 0, 9.94, 1234.5)] == [
        "?",
        "0.0",
        "9.9",
        "1,234",
    ]
    assert [size(number) for number in (0, 2048, 5 * 2**20, 3 * 2**40)] == [
        "0 B",
        "2.0 KiB",
        "5.0 MiB",
        "3,072.0 GiB",
    ]
    assert [tasks_named(range(count)) for count in (0, 2, 3, 5)] == [
        "",
        "0, 1",
        "0, 1, 2",
        "0, 1, 2 and 2 more",
    ]
    assert [span(number) for number in (0, 59.4, 61, 3 * 3600, 90_000)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "3 h 0 min",
        "1 d 1 h",
    ]


@pytest.mark.parametrize(
    ("rates", "shown"),
    [
        ({"executed": 100, "in:parse": 100}, "parse"),
        ({"executed": 100, "in:parse": 25}, "parse: 25 %"),
        ({"executed": 100}, ""),
        ({}, ""),
    ],
)
def test_a_bolt_that_is_executed_in_steps_of_another_is_shown_so_while_it_is(rates, shown):
    counted = Counted(counts={"split": {3: {"in:parse": 1000, "executed": 1000}}}, seconds=60)
    tables = tables_of(overview(counted=counted, rates={"split": {3: rates}}))
    assert tables[BOLTS][0]["in steps of"] == shown

"""Figures computed from the measurements, and how they get into the pages."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import figures, growth
from bench.__main__ import _single, table
from bench.page.blocks import blocks, filled
from bench.probe import ProbeResults, ProcessSample, Tags
from bench.rig import BenchError
from bench.throughput import moment, rate_between
from bench.topologies.chains import SHAPE, shaped

ROOT = Path(__file__).parents[3]
KEYS = [
    *(
        "arrow_ratio",
        "basic_ratio",
        "tracked_ratio",
        "inline_ratio",
        "celery_ratio",
        "dramatiq_ratio",
    ),
    *("arrow_storm_ratio", "storm_python_ratio"),
    *("slow_bolt_ratio", "beside_slow_all_p99_ms"),
    *("uneven_exp_p50", "uneven_exp_p99", "uneven_heavy_p50", "uneven_heavy_p99"),
    *("half_speed_ratio", "slow_wall_ratio", "tasks_8_to_2"),
    "p50_ms_alone",
    *("p50_ms_100", "p99_ms_100", "p50_ms", "p99_ms", "p50_ms_5000", "p99_ms_5000"),
    "cores_100",
    *("bare_p50_ms", "bare_p99_ms", "bare_per_s"),
    *("ledger_updates_per_s", "ledger_bytes_per_root", "arrow_tuples_per_s", "basic_tuples_per_s"),
    *("cpu_us_basic", "depth_ratio", "idle_cpu_percent", "first_ack_s"),
]
BLOCK = re.compile(r"<!-- bench:([a-z]+) -->\n(.*?)<!-- /bench -->", re.DOTALL)
PAGES = [ROOT / "docs/performance.md", ROOT / "README.md"]


def drained(rate, **cpu):
    return {"what": "", "sentences": 1_000, "whole_per_s": rate, "steady_per_s": rate, "cpu_s": cpu}


def a_round(factor):
    """Return a round on a machine that is ``factor`` times as fast."""
    rates = {
        "bare": 40_000,
        "basic": 16_000,
        "arrow": 24_000,
        "untracked": 20_000,
        "inline": 4_000,
        "celery": 100,
    }
    return {what: drained(rate * factor, Redis=0.002 / factor) for what, rate in rates.items()}


def results(**parts):
    return {
        "machine": {
            "cores": "2",
            "CPU": "a CPU",
            "memory": "8 GiB",
            "kernel": "Linux 6",
            "Python": "3.11",
        },
        "quick": False,
        "parts": {
            name: {"measured": "2026-01-02T03:04:05+00:00", "found": found}
            for name, found in parts.items()
        },
    }


def latencies(rate, p50):
    found = {
        "rate": rate,
        "p50_ms": p50,
        "p99_ms": 2 * p50,
        "p999_ms": 3 * p50,
        "late_ms": 1.0,
        "cores": p50 / 100,
    }
    return {**found, "bare_p50_ms": p50 / 100, "bare_p99_ms": p50 / 50}


def storm_round(factor):
    """Return a round in which tiercel is ``factor`` times as fast, and Storm is not."""
    rates = {"arrow": 24_000 * factor, "basic": 16_000 * factor, "java": 30_000, "python": 1_600}
    latency = [latencies(rate, 9.0) for rate in (100, 1_000)]
    return {what: {**drained(rate, Redis=0.01), "latency": latency} for what, rate in rates.items()}


def slow_row(ratio, raised=0):
    row = {"tasks": 4, "work_ms": 1_000, "messages": 600, "raised": raised, "wall_s": 150 * ratio}
    return {**row, "ratio": ratio, "busiest": 160}


def inbox_row(server_us):
    return {"p50_ms": 0.1, "p99_ms": 0.2, "client_us": 100.0, "server_us": server_us}


def uneven_row(**found):
    return {
        "messages": 1_920,
        **{f"{who}p50_ms": 400.0 for who in ("", "celery_", "ideal_")},
        **{f"{who}p99_ms": 1_300.0 for who in ("", "celery_", "ideal_")},
        **found,
    }


WHOLE = results(
    throughput=[a_round(1), a_round(2), a_round(4)],
    latency=[
        [
            latencies(2, p50 / 4),
            latencies(100, p50 / 2),
            latencies(1_000, p50),
            latencies(5_000, 3 * p50),
        ]
        for p50 in (90, 100, 300)
    ],
    slow={
        "drain": [slow_row(1.1), {"error": "2 messages timed out"}, slow_row(1.12)],
        "raising": [slow_row(1.2, raised=30)],
        "beside": [{"messages": 150, "p50_ms": 10.0, "p99_ms": 60.26, "max_ms": 90.0}],
        "curve": [
            {
                "tasks": tasks,
                "work_ms": work_ms,
                "messages": 20,
                "messages_per_s": 900 * tasks / work_ms,
                "share": 0.9,
            }
            for tasks in (1, 4)
            for work_ms in (1_000, 10)
        ],
    },
    uneven=[
        {
            "exponential": uneven_row(p50_ms=400.0 * factor, celery_p50_ms=500.0),
            "heavy": uneven_row(p50_ms=300.0 * factor, celery_p50_ms=600.0),
            "half_speed_ratio": 0.9 + factor / 100,
            "beside": {"messages": 150, "p50_ms": 10.0, "p99_ms": 60.26, "max_ms": 90.0},
            "slow_wall_ratio": 1.01,
            "tasks_8_to_2": 0.8 + factor / 100,
        }
        for factor in (1, 2, 3)
    ],
    activity=[{"user code": 20.0 * factor, "Redis": 10.0} for factor in (1, 2, 3)],
    storm={
        "rounds": [storm_round(1), {**storm_round(2), "java": {"error": "no"}}, storm_round(3)],
        "uneven": {
            "exponential": uneven_row(p50_ms=1_200.0),
            "heavy": {"error": "3 messages of Storm failed"},
        },
    },
    inbox={
        "calls": {
            "take 2 KB": inbox_row(20.0),
            "seal and finish": inbox_row(40.0),
            "append 2 KB": inbox_row(18.0),
            "append 64 KB": inbox_row(80.0),
        },
        "steps": {"pass": inbox_row(150.0)},
        "hops": {"100": {"p50_ms": 0.3, "p99_ms": 1.0, "client_us": 400.0, "steps": 500.0}},
        "costs": {"step_us": 900.0},
    },
    ledger=[
        {
            "by_pending": [
                {
                    "pending": 200_000,
                    "bytes_per_root": 21.26,
                    "updates_per_s": 3e5,
                    "updates_per_core_s": 5e5,
                }
            ],
            "by_tree": [{"tuples": 10, "bytes_per_root": 21.3}],
        }
    ],
    tuples={
        "price": {
            kind: {"tuples_per_s": rate, "spout_us": 4.0, "split_us": 2.0, "count_us": 1.5}
            for kind, rate in (("BasicBolt", 250_000.4), ("ArrowBolt", 3e6))
        },
        "profile": {"BasicBolt": [{"function": "a.py:1 f", "percent": 12.34, "calls": 3}]},
    },
    standby=[{"first_ack_s": 11.04, "idle_percent": 4.96, "idle_cpu_percent": {}}],
    growth={
        "depth": [
            {"value": value, "messages": 10, "messages_per_s": rate, "tuples_per_s": rate * value}
            for value, rate in ((1, 5_000.0), (8, 3_000.0))
        ]
    },
)


def test_the_last_line_has_these_keys_and_no_others():
    assert list(figures.headline(WHOLE)) == KEYS
    assert [row.key for row in figures.HEADLINES] == KEYS


def test_figures_are_medians_and_ratios_are_taken_inside_a_round():
    found = figures.headline(WHOLE)
    assert (found["basic_ratio"], found["arrow_ratio"], found["tracked_ratio"]) == (0.4, 0.6, 0.8)
    assert (found["inline_ratio"], found["celery_ratio"]) == (4.0, 160.0)
    assert (found["p50_ms"], found["p99_ms"]) == (100, 200)
    assert (found["p50_ms_100"], found["p99_ms_100"]) == (50, 100)
    assert (found["p50_ms_alone"], found["cores_100"]) == (25, 0.5)
    assert (found["p50_ms_5000"], found["p99_ms_5000"]) == (300, 600)
    assert (found["bare_p50_ms"], found["bare_p99_ms"], found["bare_per_s"]) == (1, 2, 80_000)
    assert (found["cpu_us_basic"], found["depth_ratio"]) == (1, 0.6)
    assert (found["ledger_updates_per_s"], found["ledger_bytes_per_root"]) == (300_000, 21.3)
    assert (found["arrow_tuples_per_s"], found["basic_tuples_per_s"]) == (3_000_000, 250_000)
    assert (found["idle_cpu_percent"], found["first_ack_s"]) == (5.0, 11.0)


def test_what_was_not_measured_is_null():
    assert set(figures.headline({"parts": {}}).values()) == {None}
    assert figures.headline(WHOLE)["dramatiq_ratio"] is None
    assert set(figures.headline({"parts": {"latency": {"error": "no"}}}).values()) == {None}


def test_a_contestant_that_failed_in_a_round_counts_in_the_others():
    failed = {**a_round(1), "basic": {"error": "a message was given back"}}
    found = results(throughput=[failed, a_round(2)])
    assert figures.ratio(found, "basic", "bare") == 0.4
    assert figures.drained(found, "basic", "whole_per_s") == 32_000


def test_a_run_of_slow_work_that_failed_counts_in_no_figure():
    found = figures.headline(WHOLE)
    assert (found["slow_bolt_ratio"], found["beside_slow_all_p99_ms"]) == (1.11, 60.3)
    failed = figures.headline(results(slow={"drain": [{"error": "no"}]}))
    assert (failed["slow_bolt_ratio"], failed["beside_slow_all_p99_ms"]) == (None, None)


def test_uneven_work_is_divided_by_celery_in_the_same_round():
    found = figures.headline(WHOLE)
    assert (found["uneven_exp_p50"], found["uneven_heavy_p50"]) == (1.6, 1.0)
    assert (found["uneven_exp_p99"], found["half_speed_ratio"]) == (1.0, 0.92)
    assert (found["slow_wall_ratio"], found["tasks_8_to_2"]) == (1.01, 0.82)
    alone = [
        {
            kind: uneven_row(celery_p50_ms=None, celery_p99_ms=None)
            for kind in ("exponential", "heavy")
        }
    ]
    assert figures.headline(results(uneven=alone))["uneven_exp_p50"] is None


def test_storm_is_compared_in_the_rounds_that_both_were_measured_in():
    found = figures.headline(WHOLE)
    assert (found["arrow_storm_ratio"], found["storm_python_ratio"]) == (1.6, 20.0)
    assert figures.storm(WHOLE, "java", "steady_per_s") == 30_000
    assert figures.storm_latency(WHOLE, "python", 1_000, "p99_ms") == 18.0
    assert figures.storm_latency(WHOLE, "python", 5_000, "p99_ms") is None
    made = blocks(WHOLE)
    assert made["storm"][3] == "| Storm, bolts in Java | 30,000 | 30,000 | 10 | Redis 10 |"
    assert made["stormlatency"][2:] == [
        "| 100 | 9 / 18 ms | 9 / 18 ms | 9 / 18 ms |",
        "| 1,000 | 9 / 18 ms | 9 / 18 ms | 9 / 18 ms |",
    ]
    assert made["stormuneven"][2:] == [
        "| exponential | 800 / 1,300 ms | 1,200 / 1,300 ms | 400 / 1,300 ms |"
    ]


def test_where_storm_is_left_out_its_figures_are_missing_and_the_page_stays():
    left_out = results(storm={}, throughput=[a_round(1)])
    assert figures.headline(left_out)["arrow_storm_ratio"] is None
    assert not {"storm", "stormlatency", "stormuneven"} & set(blocks(left_out))


def test_a_target_is_met_from_its_own_side():
    rows = {row.key: row for row in figures.HEADLINES}
    assert rows["p99_ms"].met(25)
    assert not rows["p99_ms"].met(81)
    assert not rows["basic_ratio"].met(0.59)
    assert rows["basic_ratio"].met(None) is None
    missed = [
        line
        for line in table({**dict.fromkeys(KEYS), "p99_ms": 81.0, "bare_p99_ms": 9.0})
        if line.endswith("missed")
    ]
    assert len(missed) == 1
    assert "81 ms" in missed[0]


def test_goals_of_latencies_are_longer_on_a_slower_machine_and_never_shorter():
    def goals(factor):
        rows = figures.headlines(results(throughput=[a_round(factor)]))
        return {row.key: row.target for row in rows}

    named = {row.key: row.target for row in figures.HEADLINES}
    # The bare consumer does 40,000/s with a factor of 1.
    assert goals(1.25) == goals(2) == named
    slower = goals(0.625)
    assert (slower["p99_ms"], slower["p50_ms_5000"]) == (50, 40)
    latencies_of_us = {
        "p50_ms_alone",
        "p50_ms_100",
        "p99_ms_100",
        "p50_ms",
        "p99_ms",
        "p50_ms_5000",
        "p99_ms_5000",
    }
    assert {key for key in named if slower[key] != named[key]} == latencies_of_us
    assert figures.headlines({"parts": {}}) == figures.HEADLINES


def test_a_run_that_failed_alone_is_told_from_the_part_that_it_is_of():
    assert [
        did
        for did in _single("slow", {"found": {"drain": [{"error": "x"}, {"ratio": 1}]}})
        if "error" in did
    ]
    assert len(_single("throughput", {"found": [a_round(1), a_round(2)]})) == 12
    failed = [did for did in _single("storm", WHOLE["parts"]["storm"]) if "error" in did]
    assert len(failed) == 2
    assert _single("storm", {"found": {}}) == []
    assert _single("slow", {"error": "no server"}) == _single("latency", {"found": [[]]}) == []


def test_every_block_of_the_pages_is_filled_and_filling_twice_changes_nothing():
    made = blocks(WHOLE)
    names = [name for each in PAGES for name, _ in BLOCK.findall(each.read_text())]
    assert sorted(names) == sorted(made)
    for each in PAGES:
        once = filled(each.read_text(), made)
        assert filled(once, made) == once
        assert all(
            "".join(made[name]) == content.strip().replace("\n", "")
            for name, content in BLOCK.findall(once)
        )
        assert BLOCK.sub("", once) == BLOCK.sub("", each.read_text())


def test_the_activities_are_medians_and_end_with_their_sum():
    assert blocks(WHOLE)["activity"][-3:] == [
        "| user code | 40.0 |",
        "| Redis | 10.0 |",
        "| **sum** | **50** |",
    ]


def test_a_block_without_figures_stays_as_it_is():
    text = "before\n<!-- bench:growth -->\nas it was\n<!-- /bench -->\nafter\n"
    assert filled(text, blocks(results(standby=[]))) == text


def test_every_row_of_a_table_has_as_many_columns_as_its_head():
    for lines in blocks(WHOLE).values():
        widths = {line.count("|") for line in lines if line.startswith("|")}
        assert len(widths) <= 1


def test_a_moment_between_two_looks_is_in_proportion():
    progress = [(10.0, 0.0), (11.0, 100.0), (13.0, 300.0)]
    assert moment(progress, 50) == pytest.approx(10.5)
    assert moment(progress, 200) == pytest.approx(12.0)
    assert rate_between(progress, 30, 270) == pytest.approx(240 / 2.4)
    with pytest.raises(BenchError, match="only 300 of 301"):
        moment(progress, 301)


@given(st.permutations(range(1, 30)), st.lists(st.integers(0, 29), max_size=5))
def test_every_tag_is_settled_once_whatever_is_acked_with_multiple(order, prefixes):
    tags = Tags()
    settled = []
    for tag in [*order[:15], *prefixes, *order[15:], 29]:
        if tag in settled:
            continue
        # A prefix is everything that a worker acks with ``multiple``: up to the first unacked tag.
        settled += tags.settle(tag, multiple=tag in prefixes or tag == 29)
    assert sorted(settled) == [*([0] if 0 in settled else []), *range(1, 30)]


@pytest.mark.parametrize(
    ("name", "value"),
    [(curve.name, value) for curve in growth.CURVES.values() for value in curve.values],
)
def test_each_point_of_a_growth_curve_is_a_topology(name, value, monkeypatch):
    shape = growth.CURVES[name].shape(value)
    monkeypatch.setenv(SHAPE, shape.environment()[SHAPE])
    topology = shaped()
    assert len(topology.bolts) == shape.depth
    assert topology.spouts["sentences"].parallelism == shape.spout_tasks
    assert topology.config.ackers == shape.shards
    assert growth.CURVES[name].messages(value) >= 45


def test_the_last_look_of_all_processes_is_found_at_the_ends_of_their_files(tmp_path):
    for process, rows in (("1", 2_000), ("2", 3)):
        lines = [f"{row / 40:.4f} {2 * row} {row} 0\n" for row in range(1, rows + 1)]
        # The last line is being written just now.
        (tmp_path / f"progress-{process}").write_text("".join(lines) + "50.0250 40")
    reading = ProbeResults(tmp_path)
    assert reading.last() == ProcessSample(50.0, 4_006, 2_003, 0)
    assert reading.samples()[-1] == ProcessSample(50.0, 4_006, 2_003, 0)
    assert [sample.acked for sample in reading.samples()[:6]] == [1, 2, 3, 4, 5, 6]
    assert ProbeResults(tmp_path / "nothing").last() == ProcessSample(0.0, 0, 0, 0)

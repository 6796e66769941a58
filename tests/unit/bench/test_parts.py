"""The cost of a tuple on inboxes in memory, and the model of growth past one machine."""

from collections import Counter

import pytest

from bench import inbox, parts, scaling, sections
from bench.scaling import Costs, Setup, bounds, constants, costs_of, first_of, scenarios, table
from bench.steps import chain
from bench.tuples import price
from bench.tuples.bolts import Count, CountBatch, Split, SplitBatch, SplitByHand, topology_of
from bench.tuples.hot_spots import hot_spots
from bench.tuples.workshop import Workshop


@pytest.mark.parametrize(
    ("split", "count"),
    [
        (Split, Count),
        (SplitByHand, Count),
        (SplitBatch, CountBatch),
    ],
)
def test_the_bolts_whose_price_is_measured_count_every_word_once(split, count):
    workshop = Workshop(topology_of(split(), count()))
    lines = [f"word{number % 7} other{number % 3} word{number % 7}" for number in range(2_500)]
    assert workshop.emit(lines) > 0
    assert workshop.work("split") > 0
    assert workshop.work("count") > 0
    assert not any(
        attempt.turn() for attempts in workshop._attempts.values() for attempt in attempts
    )
    counts = Counter()
    for attempt in workshop._attempts["count"]:
        counts.update(attempt._setup.copy.ready().counts)
    workshop.close()
    assert counts == Counter(word for line in lines for word in line.split())


def test_every_kind_has_a_price_and_tells_where_its_time_goes():
    found = price.figures(sentences=50, rounds=2)
    assert set(found) == {"BasicBolt", "Bolt", "ArrowBolt"}
    assert all(figure > 0 for row in found.values() for figure in row.values())
    assert len(price.lines(found)) == 3
    assert hot_spots("BasicBolt", sentences=50, rounds=2, limit=3)


def test_each_activity_names_functions_that_exist():
    for functions in sections.ACTIVITIES.values():
        for function in functions:
            owner, name = sections.found(function)
            assert callable(getattr(owner, name)), function


def test_the_time_of_an_activity_is_without_that_of_an_activity_that_it_calls(monkeypatch):
    now = iter(range(0, 1_000, 10))
    monkeypatch.setattr(sections.time, "thread_time_ns", lambda: next(now))
    activities = sections.Activities()
    inner = activities._wrapped("inner", lambda: None)

    def calls_twice():
        inner()
        inner()

    activities._wrapped("outer", calls_twice)()
    # Each reading of the clock is 10 ns after the last: 50 ns in all, 20 of them inside.
    assert dict(activities._ns) == {"inner": 20, "outer": 30}


def test_the_step_that_is_measured_is_of_a_bolt_that_passes_on_and_of_one_that_ends_the_tree():
    assert list(chain().bolts) == ["pass", "drop"]


def measured():
    def row(client_us, server_us):
        return {"p50_ms": 0.1, "p99_ms": 0.2, "client_us": client_us, "server_us": server_us}

    return {
        "calls": {
            "ping": row(60, 3.0),
            "take 2 KB": row(80, 20.0),
            "seal and finish": row(90, 45.0),
            "append 2 KB": row(70, 18.0),
            "append 64 KB": row(90, 80.0),
        },
        "steps": {"pass": row(900.0, 150.0), "drop": row(600.0, 100.0)},
        "hops": {"100": {**row(400.0, 0.0), "steps": 500.0}},
        "idle": {"inbox": {"cpu_ms_per_minute": 3.0, "inbox_bytes": 700.0}},
    }


def test_the_costs_of_the_model_are_found_in_what_was_measured():
    found = costs_of(measured())
    assert found == {
        "step_us": 900.0,
        "step_server_us": 65.0,
        "append_us": 15.0,
        "bytes_per_s": pytest.approx(1e9),
    }
    results = {"parts": {"inbox": {"found": {"costs": found}}}}
    results["parts"]["tuples"] = {"found": {"price": {"BasicBolt": {"tuples_per_s": 400_000}}}}
    costs = Costs().measured(results)
    assert (costs.step_us, costs.append_us, costs.tuple_us) == (900.0, 15.0, 2.5)
    assert costs.queue_per_s == Costs().queue_per_s
    assert constants({"parts": {}}) == constants({"parts": {"inbox": {"error": "no server"}}}) == {}


def test_what_is_measured_of_inboxes_is_told_line_by_line():
    lines = list(inbox.lines(measured()))
    assert len(lines) == 5 + 2 + 1 + 1
    assert "server 45 us" in lines[2]


def test_in_the_model_more_executors_help_until_something_else_bounds():
    heavy = Setup(work_us=5_000.0)
    assert first_of(heavy, Costs(), 2)[0] == pytest.approx(2 * first_of(heavy, Costs(), 1)[0])
    assert first_of(heavy, Costs(), 1)[1] == "executors"
    assert first_of(Setup(), Costs(), 10)[1] == "queues"
    # More servers carry more inboxes, at least in proportion.
    one, four = (
        bounds(Setup(work_us=5_000.0, servers=servers), Costs(), 50)["inboxes"]
        for servers in (1, 4)
    )
    assert four > 4 * one > 0


def test_in_the_model_slow_work_is_bound_by_its_tasks_alone():
    slow = scenarios(Setup())["1 s of work in one tuple"]
    for executors in scaling.EXECUTORS:
        rate, bound = first_of(slow, Costs(), executors)
        assert bound == "executors"
        assert rate == pytest.approx(2 * executors, rel=0.01)


def test_the_table_has_a_row_per_number_of_executors():
    columns = scenarios(Setup())
    lines = table(columns, Costs())
    assert len(lines) == 2 + len(scaling.EXECUTORS)
    assert {line.count("|") for line in lines} == {len(columns) + 2}


def test_a_quick_run_measures_every_figure_of_the_last_line_but_those_of_growth():
    assert set(parts.QUICK.rates) == set(parts.FULL.rates) == {2, 100, 1_000, 5_000}
    assert parts.QUICK.slow.messages == parts.FULL.slow.messages == 600
    assert parts.QUICK.slow.messages * parts.QUICK.slow.work_ms / parts.QUICK.slow.tasks <= 15_000
    assert (parts.FULL.slow.work_ms, parts.FULL.slow.tasks) == (1_000, 4)
    assert list(parts.PARTS) == [
        "throughput",
        "latency",
        "slow",
        "uneven",
        "storm",
        "ledger",
        "inbox",
        "tuples",
        "activity",
        "standby",
        "growth",
    ]

"""The number of executors against a model of a topology, its executors and its load, on simulated
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.executor_model import Model, day
from tiercel.workers.driver.scaling import ExecutorRange, Observation, Scaler


def oracle_s(model: Model, seconds: float) -> float:
    """The executor-seconds of an oracle that knows the load: at each moment just enough executors,
    there at once, without waiting messages.
    """
    total = backlog = 0.0
    most = min(model.bounds.most, model.quota)
    for second in range(1, int(seconds) + 1):
        backlog += model.load(second)
        slots = min(backlog, model.useful)
        executors = max(model.bounds.least, min(most, ceil(slots / model.slots - 1e-9)))
        backlog -= min(slots, executors * model.slots)
        total += executors
    return total


def turns(numbers: Sequence[int], noise: int = 0) -> int:
    """Changes of direction; a way back of at most ``noise`` is none."""
    found, direction, last = 0, 0, numbers[0]
    for number in numbers:
        move = (number > last) - (number < last)
        if move == direction:
            last = number
        elif abs(number - last) > noise:
            found += direction != 0
            direction, last = move, number
    return found


def burst(base: float, phase_s: float) -> Callable[[float], float]:
    """Ten times the load for a phase, then a tenth."""
    return lambda now: base * (1 if now <= phase_s else 10 if now <= 2 * phase_s else 0.1)


def a_burst(work_s: float, delay_s: float, most: int, quota: int = 10**9) -> Model:
    phase_s = phase_of(work_s, delay_s)
    load = burst(0.08 * most, phase_s)
    bounds = ExecutorRange(least=1 if most <= 4 else 2, most=most)
    return Model(bounds, work_s, load, delay_s, quota=quota).run(3 * phase_s)


def phase_of(work_s: float, delay_s: float) -> int:
    return int(max(300, 5 * delay_s, 6 * work_s))


def phases(model: Model, phase_s: int) -> list[list[int]]:
    return [model.wants[start : start + phase_s] for start in range(0, 3 * phase_s, phase_s)]


WORKS_S = (0.001, 0.1, 1.0, 10.0, 60.0, 600.0)


@pytest.mark.parametrize("most", [2, 4, 20, 1000])
@pytest.mark.parametrize("delay_s", [1.0, 30.0, 120.0])
@pytest.mark.parametrize("work_s", WORKS_S)
def test_a_burst_costs_little_more_than_an_oracle_and_turns_once(work_s, delay_s, most):
    model = a_burst(work_s, delay_s, most)
    phase_s = phase_of(work_s, delay_s)

    assert model.executor_s <= 1.3 * oracle_s(model, 3 * phase_s)
    assert all(turns(phase) <= 1 for phase in phases(model, phase_s))


@pytest.mark.parametrize(("most", "quota"), [(4, 2), (20, 6), (1000, 333)])
@pytest.mark.parametrize("delay_s", [1.0, 120.0])
@pytest.mark.parametrize("work_s", WORKS_S)
def test_a_quota_that_refuses_in_a_burst_costs_no_more_and_brings_no_turn(
    work_s, delay_s, most, quota
):
    model = a_burst(work_s, delay_s, most, quota)
    phase_s = phase_of(work_s, delay_s)

    assert max(model.presents) <= quota
    assert model.executor_s <= 1.3 * oracle_s(model, 3 * phase_s)
    assert all(turns(phase) <= 1 for phase in phases(model, phase_s))


@pytest.mark.parametrize("delay_s", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("work_s", [0.001, 1.0, 10.0])
@pytest.mark.parametrize("most", [20, 1000])
def test_the_backlog_of_a_burst_is_gone_within_twice_the_target(work_s, delay_s, most):
    phase_s = phase_of(work_s, delay_s)
    load = burst(0.05 * most, phase_s)
    model = Model(ExecutorRange(least=2, most=most), work_s, load, delay_s).run(2 * phase_s)
    two_seconds = 2 * load(phase_s + 1) + work_s
    late = [now for now in range(phase_s, 2 * phase_s) if model.backlogs[now] > two_seconds]

    # The time begins when the first executors that were asked for are there.
    assert max(late) - phase_s <= 2 * model.bounds.target_s + delay_s


@given(
    work_s=st.sampled_from((0.001, 0.1, 1.0, 10.0, 60.0)),
    delay_s=st.floats(1, 120),
    most=st.integers(2, 200),
    slots=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=15, deadline=None)
def test_whatever_arrives_by_chance_the_number_keeps_its_bounds_and_its_cost(
    work_s, delay_s, most, slots, seed
):
    phase_s = phase_of(work_s, delay_s)
    load = burst(0.08 * most * slots, phase_s)
    model = Model(ExecutorRange(least=1, most=most), work_s, load, delay_s, slots=slots, seed=seed)
    model.run(3 * phase_s)

    assert set(model.wants) <= set(range(1, most + 1))
    # The oracle knows the mean load; chance brings more work than that. And the number follows the
    # largest rate of the last minute, where the rate is a mean over 60 arrivals: one standard
    # deviation of that mean.
    chance = 1 + 3 / (0.888 * most * slots * phase_s / work_s) ** 0.5 + (2 * 60) ** -0.5
    assert model.executor_s <= 1.3 * chance * oracle_s(model, 3 * phase_s) + 3 * phase_s * 0.5
    noise = 2 + ceil(3 * (0.8 * most / slots) ** 0.5)
    assert all(turns(phase, noise) <= 1 for phase in phases(model, phase_s))


@pytest.mark.parametrize(("work_s", "delay_s"), [(0.01, 120.0), (30.0, 1.0)])
def test_over_a_day_it_goes_up_once_and_down_once(work_s, delay_s):
    day_s = 24 * 3600
    load = day(10.0)
    model = Model(ExecutorRange(least=2, most=40), work_s, load, delay_s).run(day_s)

    assert model.executor_s <= 1.3 * oracle_s(model, day_s)
    assert turns(model.wants, noise=2) <= 2
    assert max(model.backlogs) <= 2 * 60 * 20


def test_a_quota_is_reported_and_the_work_goes_on_with_what_there_is():
    model = Model(ExecutorRange(least=1, most=20), 1.0, lambda now: 10.0, 5.0, quota=4).run(60)
    assert model.refused == 0

    model.run(300)
    assert len(model.busy) == 4
    assert model.refused == model.wanted - 4
    assert turns(model.wants) == 0


def test_executors_that_die_at_once_do_not_move_the_number():
    model = Model(ExecutorRange(least=2, most=20), 0.1, lambda now: 5.0, 5.0).run(120)
    before = len(model.wants)
    for _ in range(60):
        for executor in list(model.busy)[2:]:
            del model.busy[executor]
            model.free.remove(executor)
        model.run(10)

    # The work of the dead waits, which takes more executors once.
    assert turns(model.wants[before:]) <= 1


@pytest.mark.parametrize(("useful", "slots", "executors"), [(3, 1, 3), (3, 2, 2), (1, 4, 1)])
def test_more_executors_than_limits_let_work_are_not_wanted(useful, slots, executors):
    model = Model(ExecutorRange(least=1, most=20), 1.0, lambda now: 10.0, 1.0, slots, useful=useful)

    assert max(model.run(300).wants) == executors


def test_a_limit_does_not_go_below_the_least_that_the_operator_wants():
    model = Model(ExecutorRange(least=3, most=20), 1.0, lambda now: 10.0, 1.0, useful=1)

    assert set(model.run(100).wants) == {3}


def test_an_executor_in_a_long_message_stays_until_it_is_done():
    load = burst(2.0, 1000)
    model = Model(ExecutorRange(least=1, most=20), 200.0, load, 5.0).run(3000)

    # The model takes only idle executors away, so all work was done once.
    assert model.worked_s == model.done * 200.0
    assert model.wants[-1] == 1


def test_work_that_is_not_known_yet_wants_no_more():
    scaler = Scaler(ExecutorRange(least=2, most=20))
    seen = Observation(now=1.0, waiting=900, executing=2, done=0, work_s=0.0, present=2)

    assert scaler.look(seen).wanted == 2


def test_the_reason_says_what_waits_and_what_arrives():
    scaler = Scaler(ExecutorRange(least=1, most=4))
    seen = Observation(now=1.0, waiting=900, executing=1, done=0, work_s=0.5, present=1)

    assert scaler.look(seen).why == (
        "the most allowed: 900 waiting, 0.5 s each, arrivals keep 0.0 slots busy"
    )

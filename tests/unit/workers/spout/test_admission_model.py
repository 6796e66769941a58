"""The bound on what is in flight against a model of bolt tasks, on simulated time: nothing times
out, no task idles.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from tiercel.workers.spout.admission import LARGEST_BOUND, UNPROVEN_BOUND, Admission
from tiercel.workers.spout.admission_limits import Limits

TIMEOUT_S = 30.0
LOOP_S = 0.02
OVERHEAD_S = 0.01


class Model:
    """Servers with a queue each, which are fed in turn, and a spout with more messages
    than they can do.

    A tuple that timed out stays where it is, as in an inbox, and is executed. Its root is
    forgotten: no outcome comes.
    """

    def __init__(
        self,
        servers: int,
        work_s: Callable[[int, float], float],
        rate: Callable[[float], float] | None = None,
    ):
        self.admission = Admission.for_topology(None, timedelta(seconds=TIMEOUT_S))
        self.work_s = work_s
        self.rate = rate
        self.arrived = 0.0
        self.now = 0.0
        self.free_at = [0.0] * servers
        self.turn = itertools.cycle(range(servers))
        self.numbers = itertools.count()
        self.pending: dict[int, float] = {}
        self.done: list[tuple[float, int]] = []
        self.worked: list[tuple[float, float]] = []
        self.timeouts = 0
        self.bounds: list[int] = []
        self.most = 0
        self.looked_at = 0.0

    def run(self, seconds: float) -> Model:
        until = self.now + seconds
        while self.now < until:
            self.step()
            self.now = round(self.now + LOOP_S, 6)
        return self

    def step(self) -> None:
        self.take()
        self.expire()
        if self.now >= self.looked_at:
            self.looked_at = self.now + 1
            self.look()
        self.fill()
        self.bounds.append(self.admission.bound)
        self.most = max(self.most, len(self.pending))

    def take(self) -> None:
        emitted: Counter[float] = Counter()
        while self.done and self.done[0][0] <= self.now:
            _, number = heapq.heappop(self.done)
            then = self.pending.pop(number, None)
            if then is not None:
                emitted[then] += 1
        self.admission.completed(emitted, self.now)

    def expire(self) -> None:
        for number, then in list(
            itertools.takewhile(lambda item: self.now - item[1] >= TIMEOUT_S, self.pending.items())
        ):
            del self.pending[number]
            self.timeouts += 1
            self.admission.overdue(1, then, self.now)

    def look(self) -> None:
        times = list(self.pending.values())
        old_at = self.now - self.admission.slow_s
        old = max(0, bisect_left(times, old_at) - bisect_left(times, self.admission.changed_at))
        self.admission.look(self.now, len(times), old, times[0] if times else self.now)

    def fill(self) -> None:
        if self.rate is not None:
            self.arrived += self.rate(self.now) * LOOP_S
        before = len(self.pending)
        while len(self.pending) < self.admission.bound and (self.rate is None or self.arrived >= 1):
            self.arrived -= 1
            self.emit()
        self.admission.emitted(len(self.pending) - before, self.now)
        if len(self.pending) >= self.admission.bound:
            self.admission.reached(self.now, next(iter(self.pending.values())))

    def emit(self) -> None:
        number = next(self.numbers)
        server = next(self.turn)
        needed_s = self.work_s(number, self.now)
        began = max(self.now + OVERHEAD_S, self.free_at[server])
        self.free_at[server] = began + needed_s
        self.pending[number] = self.now
        heapq.heappush(self.done, (self.free_at[server], number))
        self.worked.append((self.free_at[server], needed_s))

    def utilised(self, since: float) -> float:
        """The part of the time since then in which servers worked."""
        worked = sum(work for end, work in self.worked if since < end <= self.now)
        return worked / (self.now - since) / len(self.free_at)


def always(seconds: float) -> Callable[[int, float], float]:
    return lambda number, now: seconds


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 6, 8, 9, 12, 13, 16])
@pytest.mark.parametrize("work_s", [0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0])
def test_whatever_the_work_nothing_times_out_and_no_task_idles(work_s, servers):
    model = Model(servers, always(work_s))
    warm_s, seconds = (10, 20) if work_s < 0.1 else (60 + 15 * work_s, 60 + 40 * work_s)
    if work_s < 0.01 and servers > 4:
        pytest.skip("as for four servers, with more events")
    model.run(warm_s)
    model.run(seconds)
    assert model.timeouts == 0
    assert model.utilised(warm_s) >= 0.9


def test_a_long_tuple_holds_up_only_those_that_wait_behind_it():
    """Twenty per second for four tasks in turn, and one that takes ten seconds."""
    long_at = 800
    model = Model(
        4, lambda number, now: 10.0 if number == long_at else 0.001, rate=lambda now: 20.0
    )
    model.run(39)
    held_up = []
    for _ in range(200):
        model.run(0.05)
        held_up.append(model.arrived)
    assert max(held_up) <= 2, "nothing waits for room"
    assert model.timeouts == 0


@pytest.mark.parametrize("tasks", [2, 4, 8])
@pytest.mark.parametrize("jitter_s", [0.0, 0.15])
def test_a_long_tuple_of_a_topology_that_has_just_begun_holds_up_no_other(tasks, jitter_s):
    """The bound has had no time to grow, and other tasks are kept from the
    processor now and then.
    """

    def work_s(number, now):
        if number == 8:
            return 10.0
        return jitter_s if number % 7 == 1 else 0.001

    model = Model(tasks, work_s, rate=lambda now: 20.0)
    held_up = []
    while model.now < 12:
        model.run(0.05)
        held_up.append(model.arrived)
    assert max(held_up) <= (25 if jitter_s else 4), (
        "a second at most, for as long as little is known"
    )
    assert max(held_up[100:]) <= (10 if jitter_s else 2)
    assert model.timeouts == 0


def test_the_room_for_others_is_taken_back_when_the_long_tuple_is_done():
    model = Model(4, lambda number, now: 10.0 if number == 200 else 0.001, rate=lambda now: 20.0)
    model.run(19)
    assert model.admission.bound > 30
    model.run(10)
    assert model.admission.bound <= UNPROVEN_BOUND


def test_tasks_that_are_busy_go_on_beside_a_long_tuple():
    """The tuples behind it can still be finished in time."""
    model = Model(4, lambda number, now: 10.0 if number == 4_000 else 0.01)
    model.run(13)
    emitted = len(model.worked)
    assert emitted > 4_000
    model.run(5)
    assert len(model.worked) - emitted > 200
    model.run(60)
    assert model.timeouts == 0


def test_a_bolt_of_a_second_on_four_tasks_has_seconds_of_work_in_flight_and_not_minutes():
    model = Model(4, always(1.0)).run(150)
    assert model.most <= 20
    assert model.timeouts == 0
    assert len([end for end, _ in model.worked if end <= 150]) >= 0.87 * 600, (
        "600 messages take 1.15 x 150 s at most"
    )


@pytest.mark.parametrize("before_s", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("factor", [5, 8])
def test_work_that_becomes_much_slower_at_once_is_still_finished_in_time(before_s, factor):
    model = Model(4, lambda number, now: before_s * (factor if now > 40 else 1))
    model.run(100)
    assert model.timeouts == 0
    model.run(100)
    assert model.timeouts == 0
    assert model.utilised(100) >= 0.9


@pytest.mark.parametrize("servers", [1, 2, 4, 8])
@pytest.mark.parametrize("factor", [100, 1_000])
def test_work_that_becomes_very_much_slower_costs_what_was_in_flight_and_little_more(
    factor, servers
):
    """Tuples that timed out are still in the inboxes; those behind them must not do so for ever."""
    model = Model(servers, lambda number, now: 0.01 * (factor if now > 20 else 1))
    model.run(20)
    in_flight = model.most
    model.run(580)
    timeouts = model.timeouts
    assert timeouts <= (0 if factor == 100 else 1.3 * in_flight + 2 * UNPROVEN_BOUND)
    model.run(300)
    assert model.timeouts == timeouts
    assert model.utilised(600) >= 0.9


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("work_s", [0.001, 0.003, 0.01, 0.03])
def test_fast_work_has_no_more_in_flight_than_it_has_use_of(work_s, servers):
    model = Model(servers, always(work_s)).run(40)
    needed = servers * (work_s + OVERHEAD_S + LOOP_S) / work_s
    cheaper = servers * (Limits().cheaper_s + LOOP_S) / work_s
    assert model.admission.bound <= max(2 * UNPROVEN_BOUND, 4 * needed, 4 * cheaper)
    assert model.utilised(20) >= 0.95


def test_work_that_becomes_faster_is_followed_within_seconds():
    model = Model(4, lambda number, now: 0.01 if now > 60 else 3.0)
    model.run(80).run(20)
    assert model.timeouts == 0
    assert model.utilised(80) >= 0.9


def test_a_burst_after_a_quiet_hour_of_slow_work_is_finished_in_time():
    def rate(now):
        if now < 20:
            return 1_000.0
        return 0.2 if now < 400 else 50.0

    model = Model(4, lambda number, now: 0.001 if now < 20 else 1.0, rate)
    model.run(400)
    assert model.bounds[-1] <= UNPROVEN_BOUND, "what was reached long ago is forgotten"
    model.run(200)
    assert model.timeouts == 0
    assert model.utilised(420) >= 0.9


@pytest.mark.parametrize("slow_s", [20.0, 300.0])
@pytest.mark.parametrize("work_s", [0.01, 0.1, 1.0])
def test_one_very_slow_tuple_does_not_take_the_bound_from_the_others(work_s, slow_s):
    servers = 4

    def once(number, now):
        return slow_s if number == slow else work_s

    slow = -1
    model = Model(servers, once)
    model.run(60)
    steady = model.admission.bound
    slow = next(model.numbers) + 1
    # The slow one has its task for itself; the others are what this is about.
    model.turn = itertools.chain([0], itertools.cycle(range(1, servers)))
    model.run(29)
    assert min(model.bounds[int(60 / LOOP_S) :]) >= steady / 2
    model.run(60)
    assert model.timeouts <= steady / servers + 1, (
        "what waits behind it in its own task, and itself"
    )
    assert min(model.bounds[int(60 / LOOP_S) :]) >= steady / 3


def test_a_task_that_is_slow_beside_three_that_are_fast_has_nothing_time_out():
    model = Model(4, always(0.0))
    model.work_s = lambda number, now: 1.0 if number % 4 == 0 else 0.01
    model.run(300)
    assert model.timeouts == 0


def test_bolts_that_wait_for_more_tuples_are_given_more():
    admission = Admission.for_topology(None, timedelta(seconds=TIMEOUT_S))
    for now in range(23):
        admission.look(float(now), admission.bound, 2 if now > 21 else 0, 0.0)
    assert admission.bound == UNPROVEN_BOUND
    for now in range(23, 60):
        admission.look(float(now), admission.bound, admission.bound, 0.0)
    assert admission.bound == UNPROVEN_BOUND, (
        "but no more than that: work that slow is finished by no bound"
    )


def test_without_timeouts_bolts_that_wait_are_given_as_many_as_they_want():
    admission = Admission.for_topology(None, None)
    for now in range(300):
        admission.look(float(now), admission.bound, 0, 0.0)
    assert admission.bound == LARGEST_BOUND
    assert Limits.within(None).slow_s == float("inf")


@pytest.mark.parametrize("servers", [1, 4, 16])
@pytest.mark.parametrize("mean_s", [0.1, 1.0])
def test_work_that_varies_is_finished_in_time_and_keeps_most_tasks_busy(mean_s, servers):
    chance = random.Random(servers)
    model = Model(servers, lambda number, now: chance.expovariate(1 / mean_s)).run(100).run(200)
    assert model.timeouts == 0
    assert model.utilised(100) >= 0.75

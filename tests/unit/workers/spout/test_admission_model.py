"""The bound on tuples in flight against a model of bolt tasks, on simulated time: nothing times
out, and no task idles.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from tiercel.workers.spout.admission import UNPROVEN_BOUND, Admission, Crowd, Shape

TIMEOUT_S = 30.0
LOOP_S = 0.02
OVERHEAD_S = 0.01
# Time after which a process has reported a call.
BEATS_S = 3.0


class Model:
    """Tasks that pull from a line, as after a shuffle, or each have an inbox that is fed in turn;
    and a spout with more messages than they can process.

    A tuple that timed out stays in its inbox, and is executed. Its root is forgotten, so there is
    no outcome.
    """

    def __init__(
        self,
        servers: int,
        work_s: Callable[[int, float], float],
        rate: Callable[[float], float] | None = None,
        *,
        dealt: bool = False,
        places: int | None = None,
        timeout: timedelta | None = timedelta(seconds=TIMEOUT_S),
    ):
        shape = Shape(places=servers if places is None else places, dealt=dealt and servers > 1)
        self.admission = Admission.for_topology(None, timeout, shape)
        self.timeout_s = float("inf") if timeout is None else timeout.total_seconds()
        self.work_s = work_s
        self.rate = rate
        self.arrived = 0.0
        self.now = 0.0
        self.free_at = [0.0] * servers
        self.turn = itertools.cycle(range(servers)) if dealt else None
        self.numbers = itertools.count()
        self.pending: dict[int, float] = {}
        # When each tuple will be done, its number and task, and when it begins.
        self.done: list[tuple[float, int, int, float]] = []
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
            self.admission.look(self.now, len(self.pending), self.crowd)
        self.fill()
        self.bounds.append(self.admission.bound)
        self.most = max(self.most, len(self.pending))

    def crowd(self) -> Crowd:
        tuples = Counter(server for _, _, server, _ in self.done)
        fullest = len(self.done) / len(self.free_at) if self.turn is None else max(tuples.values())
        return Crowd(fullest, any(began < self.now - BEATS_S for _, _, _, began in self.done))

    def take(self) -> None:
        took_s = []
        while self.done and self.done[0][0] <= self.now:
            _, number, _, _ = heapq.heappop(self.done)
            then = self.pending.pop(number, None)
            if then is not None:
                took_s.append(self.now - then)
        self.admission.completed(len(took_s), sum(took_s), self.now)

    def expire(self) -> None:
        for number, then in list(
            itertools.takewhile(
                lambda item: self.now - item[1] >= self.timeout_s, self.pending.items()
            )
        ):
            del self.pending[number]
            self.timeouts += 1
            self.admission.timed_out(then, self.now)

    def fill(self) -> None:
        if self.rate is not None:
            self.arrived += self.rate(self.now) * LOOP_S
        while len(self.pending) < self.admission.bound and (self.rate is None or self.arrived >= 1):
            self.arrived -= 1
            self.emit()
        if len(self.pending) >= self.admission.bound:
            self.admission.reached(self.now)

    def emit(self) -> None:
        number = next(self.numbers)
        needed_s = self.work_s(number, self.now)
        # The first tuple of a line goes to the task that is free first.
        free = min(range(len(self.free_at)), key=self.free_at.__getitem__)
        server = free if self.turn is None else next(self.turn)
        began = max(self.now + OVERHEAD_S, self.free_at[server])
        self.free_at[server] = began + needed_s
        self.pending[number] = self.now
        heapq.heappush(self.done, (self.free_at[server], number, server, began))
        self.worked.append((self.free_at[server], needed_s))

    def utilised(self, since: float) -> float:
        """Return the share of the time since then in which servers worked."""
        worked = sum(work for end, work in self.worked if since < end <= self.now)
        return worked / (self.now - since) / len(self.free_at)


def always(seconds: float) -> Callable[[int, float], float]:
    return lambda number, now: seconds


def seldom(work_s: float, factor: int, seed: int) -> Callable[[int, float], float]:
    """Return a duration that is much longer for one tuple in twenty."""
    chance = random.Random(seed)
    return lambda number, now: work_s * (factor if chance.random() < 0.05 else 1)


@pytest.mark.parametrize("dealt", [False, True], ids=["line", "inboxes"])
@pytest.mark.parametrize("servers", [1, 2, 3, 4, 6, 8, 9, 12, 13, 16])
@pytest.mark.parametrize("work_s", [0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0])
def test_whatever_the_work_nothing_times_out_and_no_task_idles(work_s, servers, dealt):
    model = Model(servers, always(work_s), dealt=dealt)
    warm_s, seconds = (10, 20) if work_s < 0.1 else (60 + 15 * work_s, 60 + 40 * work_s)
    if work_s < 0.01 and servers > 4:
        pytest.skip("as for four servers, with more events")
    model.run(warm_s)
    model.run(seconds)
    assert model.timeouts == 0
    assert model.utilised(warm_s) >= 0.9


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 6, 8, 16, 50])
@pytest.mark.parametrize("work_s", [13.0, 16.0, 20.0, 22.0, 25.0, 27.0])
def test_work_of_most_of_the_timeout_keeps_all_tasks_of_a_line_busy_in_time(work_s, servers):
    """No tuple can wait for another one, and be in time."""
    model = Model(servers, always(work_s)).run(10 * work_s)
    timeouts = model.timeouts
    assert timeouts <= (10 if servers == 1 else 0), "one task cannot finish the first two in time"
    model.run(400)
    assert model.timeouts == timeouts
    assert model.utilised(10 * work_s) >= 0.95


class Renewed(Model):
    """No call times out, as with ``execute_timeout_secs``."""

    def expire(self) -> None:
        pass


@pytest.mark.parametrize("servers", [1, 4, 16, 50])
@pytest.mark.parametrize("work_s", [40.0, 300.0])
def test_calls_that_outlast_the_timeout_have_one_tuple_for_each_task(work_s, servers):
    model = Renewed(servers, always(work_s)).run(3 * work_s)
    assert model.admission.bound == servers
    model.run(10 * work_s)
    assert model.most == max(servers, 2), "two in the beginning"
    assert model.utilised(3 * work_s) >= 0.95


@pytest.mark.parametrize(("servers", "seconds"), [(2, 1), (4, 7), (8, 9), (16, 11), (100, 18)])
@pytest.mark.parametrize("work_s", [10.0, 20.0, 25.0, 40.0])
def test_tasks_with_slow_work_are_all_busy_soon_after_the_start(work_s, servers, seconds):
    """The bound doubles every two seconds, once a process has reported a call."""
    model = (Renewed if work_s > TIMEOUT_S else Model)(servers, always(work_s)).run(seconds)
    assert {server for _, _, server, _ in model.done} == set(range(servers))
    assert model.run(100).timeouts == 0


@pytest.mark.parametrize("servers", [2, 4, 16])
def test_work_that_becomes_that_slow_keeps_all_tasks_busy_again(servers):
    model = Model(servers, lambda number, now: 20.0 if now > 60 else 1.0).run(300)
    timeouts = model.timeouts
    assert timeouts <= 4 * servers, "tuples that were in flight"
    model.run(300)
    assert model.timeouts == timeouts
    assert model.utilised(300) >= 0.95


def test_a_long_tuple_holds_up_no_other():
    """Twenty tuples per second for four tasks, and one that takes ten seconds."""
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
    """Tuples that timed out are still in the inboxes, and must not make those behind them time out
    for ever.
    """
    model = Model(servers, lambda number, now: 0.01 * (factor if now > 20 else 1))
    model.run(20)
    in_flight = model.most
    model.run(880)
    timeouts = model.timeouts
    assert timeouts <= (0 if factor == 100 else 1.3 * in_flight + 2 * UNPROVEN_BOUND)
    model.run(300)
    assert model.timeouts == timeouts
    assert model.utilised(900) >= 0.9


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("work_s", [0.001, 0.003, 0.01, 0.03])
def test_fast_work_has_no_more_in_flight_than_it_has_use_of(work_s, servers):
    model = Model(servers, always(work_s)).run(40)
    needed = servers * (work_s + OVERHEAD_S + LOOP_S) / work_s
    seconds = 0.5 if servers / work_s >= 2_000 else 0.25
    in_time = servers * (seconds + LOOP_S) / work_s
    assert model.admission.bound <= max(2 * UNPROVEN_BOUND, 4 * needed, 1.2 * in_time)
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
    # The slow task works alone; the test is about the other tasks.
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


@pytest.mark.parametrize("servers", [1, 4, 16])
@pytest.mark.parametrize("mean_s", [0.1, 1.0])
def test_work_that_varies_is_finished_in_time_and_keeps_most_tasks_busy(mean_s, servers):
    chance = random.Random(servers)
    model = Model(servers, lambda number, now: chance.expovariate(1 / mean_s)).run(100).run(200)
    assert model.timeouts == 0
    assert model.utilised(100) >= 0.75


# Long tuples are no longer than this; otherwise six in a row would fill the 30 s of one task.
@pytest.mark.parametrize(
    ("work_s", "factor"), [(0.001, 100), (0.01, 100), (0.001, 500), (0.01, 500)]
)
@pytest.mark.parametrize("servers", [1, 2, 4, 8, 16])
def test_where_one_tuple_in_twenty_takes_much_longer_nothing_times_out(servers, work_s, factor):
    if work_s * factor < 1 and servers > 4:
        pytest.skip("as for four servers, with more events")
    model = Model(servers, seldom(work_s, factor, servers)).run(100).run(200)
    assert model.timeouts == 0
    assert model.utilised(100) >= 0.95


@pytest.mark.parametrize("servers", [2, 8])
def test_tuples_that_are_dealt_to_inboxes_and_vary_keep_most_tasks_busy(servers):
    model = Model(servers, seldom(0.01, 100, servers), dealt=True).run(100).run(200)
    assert model.timeouts == 0
    assert model.utilised(100) >= 0.75


def test_a_chain_with_one_slow_task_beside_many_quick_ones_has_nothing_time_out():
    """One tuple for each of the tasks would be three minutes of work for the slow one."""
    model = Model(1, always(10.0), places=17).run(600)
    assert model.timeouts == 0
    assert model.utilised(60) >= 0.9


class Shared(Model):
    """Calls at one task, each with a place, that share fewer connections."""

    def __init__(self, connections: int, calls: int, work_s: float):
        super().__init__(connections, always(work_s), places=calls)
        self.calls = calls

    def crowd(self) -> Crowd:
        oldest = min(self.pending.values(), default=self.now)
        return Crowd(len(self.done) / self.calls, oldest < self.now - BEATS_S)


@pytest.mark.parametrize("calls", [100, 400])
@pytest.mark.parametrize("work_s", [10.0, 20.0, 25.0])
def test_calls_that_wait_are_all_under_way_soon_after_the_start(work_s, calls):
    model = Shared(calls, calls, work_s).run(30)
    assert model.most >= calls
    assert model.run(270).timeouts == 0
    assert model.utilised(30) >= 0.95


@pytest.mark.parametrize("connections", [10, 50])
@pytest.mark.parametrize("work_s", [5.0, 10.0, 20.0])
def test_calls_that_share_few_connections_time_out_seldom_after_the_start(work_s, connections):
    """Twice the calls in flight at which tuples timed out are not tried again at once."""
    model = Shared(connections, 100, work_s).run(120)
    before, worked = model.timeouts, len(model.worked)
    assert before <= 150
    model.run(480)
    assert model.timeouts - before <= 0.2 * (len(model.worked) - worked)
    assert model.utilised(120) >= 0.7

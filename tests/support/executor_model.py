"""A model of a topology, its executors and its load, on simulated time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf, pi, sin

from tiercel.workers.driver.scaling import ExecutorRange, Observation, Scaler


@dataclass
class Model:
    """Executors that come after a delay and leave when idle; messages that arrive by a rate.

    Messages of a second or more occupy a slot each; shorter ones are a fluid.
    """

    bounds: ExecutorRange
    work_s: float
    load: Callable[[float], float]  # in slots, by the time
    delay_s: float = 10.0
    slots: int = 1
    quota: int = 10**9
    useful: float = inf
    seed: int | None = None
    now: float = 0.0
    waiting: float = 0.0
    done: float = 0.0
    worked_s: float = 0.0
    executor_s: float = 0.0
    # Busy slots by executor; (end, executor) of what is executed; (time) of those that come.
    busy: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    ends: list[tuple[float, int]] = field(default_factory=list)
    coming: list[float] = field(default_factory=list)
    # Numbers wanted and present, and slot-seconds of work that wait, by the second.
    wants: list[int] = field(default_factory=list)
    presents: list[int] = field(default_factory=list)
    backlogs: list[float] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.scaler = Scaler(self.bounds)
        self.chance = random.Random(self.seed)
        self.next_id = 0
        self.wanted = self.bounds.least
        for _ in range(self.bounds.least):
            self.join()

    def join(self) -> None:
        self.busy[self.next_id] = 0
        self.free += [self.next_id] * self.slots
        self.next_id += 1

    def run(self, seconds: float) -> Model:
        until = self.now + seconds
        while self.now < until:
            self.tick()
        return self

    def tick(self) -> None:
        self.now += 1
        rate = self.load(self.now) / self.work_s
        if self.seed is None or rate > 1000:
            self.waiting += rate
        else:
            self.waiting += poisson(self.chance, rate)
        executing = self.execute()
        while self.coming and self.coming[0] <= self.now:
            heapq.heappop(self.coming)
            self.join()
        self.executor_s += len(self.busy)
        decision = self.scaler.look(
            Observation(
                now=self.now,
                waiting=int(self.waiting),
                executing=executing,
                done=int(self.done),
                work_s=self.work_s,
                present=len(self.busy),
                slots=self.slots,
                useful=self.useful,
            )
        )
        self.wanted = decision.wanted
        self.refused = decision.refused
        self.follow()
        self.wants.append(self.wanted)
        self.presents.append(len(self.busy))
        self.backlogs.append(self.waiting * self.work_s)

    def execute(self) -> int:
        if self.work_s < 1:
            places = min(len(self.busy) * self.slots, self.useful)
            count = min(self.waiting, places / self.work_s)
            self.waiting -= count
            self.done += count
            self.worked_s += count * self.work_s
            return ceil(count * self.work_s)
        while self.ends and self.ends[0][0] <= self.now:
            _, executor = heapq.heappop(self.ends)
            self.busy[executor] -= 1
            self.free.append(executor)
            self.done += 1
            self.worked_s += self.work_s
        while self.waiting >= 1 and self.free and len(self.ends) < self.useful:
            executor = self.free.pop()
            if executor not in self.busy:
                continue
            self.waiting -= 1
            self.busy[executor] += 1
            heapq.heappush(self.ends, (self.now + self.work_s, executor))
        return len(self.ends)

    def follow(self) -> None:
        there = len(self.busy) + len(self.coming)
        for _ in range(there, min(self.wanted, self.quota)):
            heapq.heappush(self.coming, self.now + self.delay_s)
        for _ in range(min(len(self.coming), max(0, there - self.wanted))):
            self.coming.pop()
            heapq.heapify(self.coming)
        excess = len(self.busy) - self.wanted
        if excess > 0:
            idle = [each for each, busy in self.busy.items() if not busy][:excess]
            for executor in idle:
                assert self.busy[executor] == 0
                del self.busy[executor]
            gone = set(idle)
            self.free = [each for each in self.free if each not in gone]


def poisson(chance: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, mean**0.5)))
    count, left = 0, chance.expovariate(1)
    while left < mean:
        count += 1
        left += chance.expovariate(1)
    return count


def day(mean: float) -> Callable[[float], float]:
    """The load of a day with a night, a noon and twice the mean at its peak."""
    return lambda now: mean * (1 + sin(2 * pi * (now / 86_400 - 0.25)))

"""The line before a rate limit: when each tuple leaves it, and how often it asks for permits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.support.chunks import chunk
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.limits import Grant, MemoryLimits, Rate
from tiercel.spark_jobs.bolts.streams import SYSTEM, TICK
from tiercel.spark_jobs.bolts.tuples import Origin, Tuple
from tiercel.spark_jobs.bolts.verdicts import RetryLater
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.lines import LimitLine, LineSettings, OpenLine, Returns

FIELDS = pa.schema([("key", pa.string())])
ORIGIN = Origin("spout", "default", 1, FIELDS)
LINEAGE = decode(chunk(*range(1, 1001))).lineage


class Counted:
    """Limits that count their calls."""

    def __init__(self, rate: Rate, clock: Any) -> None:
        self._limits = MemoryLimits(rate, clock)
        self.taken: list[Mapping[bytes, int]] = []
        self.given_back: list[Mapping[bytes, int]] = []

    def take(self, task: int, wants: Mapping[bytes, int]) -> dict[bytes, Grant]:
        self.taken.append(dict(wants))
        return self._limits.take(task, wants)

    def give_back(self, task: int, permits: Mapping[bytes, int]) -> None:
        self.given_back.append(dict(permits))
        self._limits.give_back(task, permits)

    def close(self) -> None:
        self._limits.close()


class Told:
    """A ledger that records waiting tuples."""

    def __init__(self) -> None:
        self.waiting: list[list[int]] = []
        self.behind: list[list[int]] = []

    def reset_timeout(self, roots: list[int], *, waiting: bool = False) -> None:
        (self.waiting if waiting else self.behind).append(list(roots))


class Bench:
    def __init__(self, rate: Rate, **settings: Any) -> None:
        self.now = 1_000.0
        self.numbers = 0
        self.limits = Counted(rate, lambda: self.now)
        self.ledger = Told()
        chosen = {"most_per_value": 1_000, "most": 10_000, "timeout_s": 30.0, **settings}
        self.line = LimitLine(
            self.limits,
            LineSettings(task=1, value_of=lambda call: call.tup["key"].encode(), **chosen),
            self.ledger,  # type: ignore[arg-type] - of which only this is used
            lambda: self.now,
            lambda: [7, 8],
        )

    def add(self, *keys: str, first: bool = False) -> list[int]:
        """Add a tuple per key; return their numbers."""
        before = self.numbers
        for key in keys:
            self.numbers += 1
            self.line.add(call_of(key, self.numbers), first=first)
        return list(range(before + 1, self.numbers + 1))

    def leave(self, room: int = 100) -> list[int]:
        return [call.number for call in self.line.leave(room)]

    def until(self, now: float, room: int = 100) -> list[tuple[float, int]]:
        """Look at the line only when it is due; return when each tuple left."""
        left = [(self.now, number) for number in self.leave(room)]
        while (at := self.line.next_at) is not None and at <= now:
            self.now = max(self.now, at)
            left += [(self.now, number) for number in self.leave(room)]
        self.now = now
        return left


def call_of(key: str, number: int, origin: Origin = ORIGIN) -> Call:
    tup = Tuple([key], origin, number - 1)
    return Call(tup=tup, lineage=LINEAGE, position="1-0", number=number)


def test_it_asks_about_as_often_as_permits_come_and_no_more() -> None:
    bench = Bench(Rate(permits=10))
    bench.add(*["a"] * 100)
    left = bench.until(1_009.0)
    assert [number for _, number in left] == list(range(1, len(left) + 1))
    assert 89 <= len(left) <= 92
    assert len(bench.limits.taken) <= 1.2 * len(left)


def test_for_a_slow_limit_it_sleeps_for_ten_seconds_at_a_time() -> None:
    bench = Bench(Rate(permits=1, seconds=3600), timeout_s=None)
    bench.add("a", "a")
    left = bench.until(1_000 + 3600.0)
    assert [number for _, number in left] == [1, 2]
    assert left[1][0] == pytest.approx(4_600, abs=1)
    assert len(bench.limits.taken) <= 2 + 3600 / 10


def test_nothing_is_asked_for_that_has_no_place_and_values_take_turns() -> None:
    bench = Bench(Rate(permits=1000))
    bench.add("a", "a", "a", "b", "b", "c")
    assert bench.leave(0) == []
    assert bench.limits.taken == []
    assert bench.line.crowd == 6
    assert [bench.leave(1) for _ in range(6)] == [[1], [4], [6], [2], [5], [3]]
    assert all(sum(wants.values()) == 1 for wants in bench.limits.taken)
    assert (bench.line.held, bench.line.crowd) == (0, 0)
    assert bench.line.next_at is None


def test_without_a_place_a_call_that_ends_is_what_it_waits_for() -> None:
    bench = Bench(Rate(permits=1000), timeout_s=None)
    bench.add("a", "a")
    assert bench.leave(1) == [1]
    # The line wakes once more, to report the waiting tuple.
    assert bench.line.next_at == pytest.approx(1_000.1)
    bench.now = 1_000.2
    assert bench.leave(0) == []
    assert bench.line.next_at is None


def test_what_waits_is_told_once_soon_and_all_of_it_before_it_times_out() -> None:
    bench = Bench(Rate(permits=1, seconds=3600), most=4)
    bench.add("a", "a", "a")
    bench.until(1_000.05)
    bench.add("b", "b")
    bench.until(1_009.9)
    assert bench.leave() == []
    assert bench.ledger.waiting == [[2, 3, 5]]
    assert bench.line.full is False
    bench.add("a")
    bench.until(1_010.5)
    assert bench.ledger.waiting[1:] == [[2, 3, 5, 6]]
    assert bench.line.full
    # A tuple behind a full line waits too, and counts as in the bolts.
    assert bench.ledger.behind == [[7, 8]]


def test_what_only_waits_for_a_place_is_not_told() -> None:
    bench = Bench(Rate(permits=1000))
    bench.add("a", "b")
    bench.leave(1)
    bench.now += 1.0
    bench.leave(0)
    assert [root for told in bench.ledger.waiting for root in told] == []


def test_ticks_pass_and_what_others_wait_for_comes_first() -> None:
    bench = Bench(Rate(permits=1, seconds=60))
    bench.add("a", "a")
    assert bench.leave() == [1]
    [awaited] = bench.add("a", first=True)
    bench.line.add(call_of("tick", 9, Origin(SYSTEM, TICK, -1, FIELDS)))
    assert bench.leave(0) == [9]
    assert [number for _, number in bench.until(1_061.0)] == [awaited]


def test_the_place_at_the_limit_is_left_at_the_end() -> None:
    bench = Bench(Rate(permits=1, seconds=60))
    bench.add("a", "b", "b")
    assert bench.leave() == [1, 2]
    assert bench.line.held == 1
    assert [number for _, number in bench.until(1_061.0)] == [3]
    bench.add("a", "a")
    bench.until(1_062.0)
    bench.line.close()
    assert bench.limits.given_back == [{b"a": 0}]
    assert bench.line.held == 0


def test_the_surplus_of_a_value_goes_back_but_not_what_is_untracked() -> None:
    bench = Bench(Rate(permits=1), most_per_value=3, returns=Returns(1.0))
    numbers = bench.add(*["a"] * 5, *["b"] * 2)
    over = bench.line.over()
    assert [call.number for call in over] == numbers[3:5]
    assert bench.line.over() == []
    errors = [call.error for call in over]
    assert all(isinstance(error, RetryLater) and not error.blame for error in errors)
    untracked = call_of("a", 8)
    untracked.lineage = None
    bench.line.add(untracked)
    assert bench.line.over() == []
    assert bench.line.held == 6


def test_each_that_goes_back_has_a_turn_of_its_own() -> None:
    returns = Returns(10.0)
    seconds = [returns.later(b"a", 6, 1_000.0).seconds for _ in range(3)]
    assert seconds == pytest.approx([54.0, 63.0, 72.0])
    assert returns.later(b"b", 6, 1_000.0).seconds == pytest.approx(54.0)
    # Past turns are no reason to wait.
    assert returns.later(b"a", 6, 2_000.0).seconds == pytest.approx(54.0)
    assert Returns(1e9).later(b"a", 6, 0.0).seconds == 30 * 86_400


def test_values_are_seldom_searched_for_those_to_forget_and_old_ones_are_forgotten():
    """With more than 10,000 values, each tuple that went back took a millisecond for that."""
    returns = Returns(3600.0)
    kept = [returns._promised]
    for n in range(12_000):
        returns.later(b"%d" % n, 1, 0.0)
        if returns._promised is not kept[-1]:
            kept.append(returns._promised)
    assert len(kept) == 2
    for n in range(12_000, 40_000):
        returns.later(b"%d" % n, 0, 4_000.0 * n)
    assert len(returns._promised) <= 10_001


def test_without_a_limit_each_tuple_passes_at_once() -> None:
    line = OpenLine()
    line.add(call_of("a", 1))
    line.add(call_of("a", 2), first=True)
    assert [call.number for call in line.leave(0)] == [1, 2]
    assert (line.held, line.crowd, line.full, line.next_at, line.over()) == (0, 0, False, None, [])

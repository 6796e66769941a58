"""The windows of one task, without a task: each window has the tuples that a plain computation over
all of them finds, however they are cut into steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercel import Session, Sliding, tumbling
from tiercel.spark_jobs.kinds.windows.assigners import (
    Assigner,
    CountWindows,
    Limits,
    Plan,
    WindowId,
    assigner_of,
)
from tiercel.spark_jobs.kinds.windows.rows import FOREVER, GOOD, HeldRows, Watermark

# A window as these tests see it: its key, and the numbers of its tuples.
Found = tuple[int, list[int]]


def us(number: int) -> timedelta:
    return timedelta(microseconds=number)


class Task:
    """Holds tuples and closes their windows, in steps, as a task does."""

    def __init__(
        self,
        window: Sliding | Session,
        *,
        lag: int = 0,
        tells_expired: bool = False,
        limits: Limits | None = None,
        fails: Random | None = None,
    ) -> None:
        """``fails`` draws the windows that fail at first, and are tried again later."""
        self.rows = HeldRows()
        # Keys are their own digests.
        self.window, self.tells_expired = window, tells_expired
        self.assigner = self._assigner()
        self.fails = fails
        self.mark = Watermark([1], lag, 60, 0)
        self.limits = limits or Limits()
        # Number of each row's tuple, by its place in the inbox.
        self.numbers: list[int] = []
        self.late: list[int] = []
        self.closed: list[Found] = []
        # Key and expired numbers of each window.
        self.expired: list[Found] = []
        self.new: list[Found] = []

    def step(self, tuples: Sequence[tuple[int, int, int]]) -> None:
        """Take tuples of one chunk, each a number, a key and a timestamp; close what closes."""
        numbers, keys, times = (np.array(part, np.int64) for part in zip(*tuples, strict=True))
        entry = len(self.numbers)
        none = np.zeros(len(tuples), np.int64)
        columns = {name: none.copy() for name in HeldRows.NAMES}
        columns |= {"time": times, "key": keys, "seq": entry + np.arange(len(tuples))}
        before = self.mark.follow(1, times, 0)
        late = self.assigner.judge(self.rows, columns, before)
        self.late += numbers[late].tolist()
        assert (columns["status"] == GOOD).all()
        self.numbers += numbers.tolist()
        self.assigner.added(
            self.rows, self.rows.add({name: one[~late] for name, one in columns.items()})
        )
        self.close(self.mark.at)

    def restart(self) -> None:
        """The process is replaced: the next one takes what is held from the inbox, in its order."""
        state = json.loads(json.dumps(self.assigner.dump()))
        held = np.flatnonzero(self.rows.alive)
        columns = {name: self.rows[name][held] for name in HeldRows.NAMES}
        self.rows, self.assigner = HeldRows(), self._assigner()
        self.assigner.load(state)
        self.assigner.added(self.rows, self.rows.add(columns))

    def _assigner(self) -> Assigner:
        return assigner_of(self.window, range(3), by_time=True, tells_expired=self.tells_expired)

    def _failed(self, plan: Plan) -> set[WindowId]:
        if self.fails is None:
            return set()
        failed = [one for one in plan.closings if self.fails.random() < 0.3]
        if isinstance(self.assigner, CountWindows):
            # Those behind it in its key wait for it.
            firsts = {one.key: one.id for one in reversed(failed)}
            ids = [one.id for one in plan.closings]
            failed = [
                one
                for one in plan.closings
                if one.key in firsts and ids.index(one.id) >= ids.index(firsts[one.key])
            ]
        return {one.id for one in failed}

    def close(self, watermark: int) -> None:
        while self.assigner.next_end(self.rows) <= watermark:
            plan = self.assigner.plan(self.rows, watermark, frozenset(), self.limits)
            if not plan.closings and self.limits.windows == FOREVER:
                # The time of rows that stay after their last window may have come.
                watermark = min(watermark, plan.watermark)
            failed = self._failed(plan)
            for one in plan.closings:
                if one.id in failed:
                    continue
                self.closed.append((one.key, self._of(one.rows)))
                self.new.append((one.key, self._of(one.rows[one.new])))
                self.expired.append((one.key, self._of(one.expired)))
            gone = self.assigner.leaving(self.rows, plan, failed)
            self.assigner.close(self.rows, plan, failed)
            self.rows.remove(gone)
            if not plan.closings and not gone.size and not failed:
                break

    def end(self) -> None:
        """Close all windows in time."""
        self.close(FOREVER // 2)

    def _of(self, rows: np.ndarray) -> list[int]:
        return [self.numbers[place] for place in self.rows["seq"][rows].tolist()]


def test_a_tuple_is_late_if_its_last_window_has_closed() -> None:
    task = Task(Sliding(us(20), us(10)), lag=5)
    task.step([(1, 0, 603), (2, 0, 634), (3, 0, 611), (4, 0, 610), (5, 0, 609)])
    assert task.late == [5]
    # The window until 620 had closed when 611 came, and the one until 630 had not.
    assert task.closed == [(0, [1]), (0, [1])]
    task.end()
    assert task.closed[2:] == [(0, [4, 3]), (0, [2]), (0, [2])]


def arrivals(most: int = 40) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Keys and timestamps, in the order of arrival."""
    return st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200)), min_size=1, max_size=most)


def numbered(some: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(number, key, time) for number, (key, time) in enumerate(some)]


def cut(tuples: Sequence[tuple[int, int, int]], size: int) -> list[Sequence[tuple[int, int, int]]]:
    return [tuples[first : first + size] for first in range(0, len(tuples), size)]


def in_order(tuples: Sequence[tuple[int, int, int]], key: int) -> list[tuple[int, int]]:
    """Return times and numbers of a key's tuples, by time, then as they came."""
    return sorted((time, number) for number, its, time in tuples if its == key)


def by_time(tuples: Sequence[tuple[int, int, int]], length: int, slide: int) -> list[Found]:
    found = []
    for key in range(3):
        its = in_order(tuples, key)
        for start in range(-(-length // slide) * -slide, 201, slide):
            inside = [number for time, number in its if start <= time < start + length]
            found += [(key, inside)] if inside else []
    return found


def by_sessions(tuples: Sequence[tuple[int, int, int]], gap: int, longest: int) -> list[Found]:
    found: list[Found] = []
    for key in range(3):
        start = before = -1_000
        for time, number in in_order(tuples, key):
            if time - before >= gap or time - start >= longest:
                found.append((key, []))
                start = time
            found[-1][1].append(number)
            before = time
    return found


@settings(max_examples=200, deadline=None)
@given(
    some=arrivals(),
    size=st.integers(1, 10),
    slides=st.integers(1, 4),
    slide=st.integers(1, 30),
    more=st.integers(0, 29),
    windows=st.sampled_from([1, 3, FOREVER]),
    expired=st.booleans(),
)
def test_windows_in_time_have_the_tuples_of_a_batch(
    some, size, slides, slide, more, windows, expired
) -> None:
    length = slides * slide + min(more, slide - 1)
    task = Task(
        Sliding(us(length), us(slide)), lag=200, limits=Limits(windows=windows),
        tells_expired=expired,
    )  # fmt: skip
    tuples = numbered(some)
    for part in cut(tuples, size):
        task.step(part)
    task.end()
    assert task.late == []
    assert sorted(task.closed) == sorted(by_time(tuples, length, slide))
    assert task.rows.count == 0


@settings(max_examples=200, deadline=None)
@given(
    some=arrivals(),
    size=st.integers(1, 10),
    gap=st.integers(1, 30),
    gaps=st.integers(1, 4),
    windows=st.sampled_from([1, FOREVER]),
)
def test_sessions_have_the_tuples_of_a_batch(some, size, gap, gaps, windows) -> None:
    task = Task(Session(us(gap), longest=us(gap * gaps)), lag=200, limits=Limits(windows=windows))
    tuples = numbered(some)
    for part in cut(tuples, size):
        task.step(part)
    task.end()
    assert sorted(task.closed) == sorted(by_sessions(tuples, gap, gap * gaps))
    assert task.rows.count == 0


@settings(max_examples=200, deadline=None)
@given(
    some=arrivals(),
    size=st.integers(1, 10),
    length=st.integers(1, 8),
    slide=st.integers(1, 8),
    windows=st.sampled_from([1, FOREVER]),
)
def test_windows_of_tuples_have_those_of_a_batch(some, size, length, slide, windows) -> None:
    length, slide = max(length, slide), min(length, slide)
    task = Task(Sliding(length, slide), lag=200, limits=Limits(windows=windows))
    tuples = numbered(some)
    for part in cut(tuples, size):
        task.step(part)
    task.end()
    expected = []
    for key in range(3):
        its = [number for _, number in in_order(tuples, key)]
        expected += [
            (key, its[max(0, end - length) : end]) for end in range(slide, len(its) + 1, slide)
        ]
    assert sorted(task.closed) == sorted(expected)


@settings(max_examples=200, deadline=None)
@given(some=arrivals(), size=st.integers(1, 10), lag=st.integers(0, 40), length=st.integers(1, 40))
def test_a_tuple_is_in_its_window_or_late_and_never_in_two(some, size, lag, length) -> None:
    tuples = numbered(some)
    task = Task(tumbling(us(length)), lag=lag)
    for part in cut(tuples, size):
        task.step(part)
    task.end()
    had = [number for _, numbers in task.closed for number in numbers]
    assert sorted(had + task.late) == [number for number, _, _ in tuples]
    highest = -1_000
    for number, _, time in tuples:
        assert (number in task.late) == (time // length * length + length <= highest - lag)
        highest = max(highest, time)


@pytest.mark.parametrize("size", [1, 2, 10])
def test_expired_are_the_tuples_that_the_window_before_had(size: int) -> None:
    task = Task(Sliding(us(20), us(10)), lag=5, tells_expired=True)
    for part in cut(numbered([(0, t) for t in (603, 605, 607, 618, 626, 636, 839)]), size):
        task.step(part)
    assert task.expired[:5] == [(0, []), (0, []), (0, [0, 1, 2]), (0, [3]), (0, [4])]
    assert task.new[:5] == [(0, [0, 1, 2]), (0, [3]), (0, [4]), (0, [5]), (0, [])]


@settings(max_examples=300, deadline=None)
@given(
    some=arrivals(),
    size=st.integers(1, 10),
    window=st.sampled_from(
        [
            tumbling(us(20)),
            Sliding(us(20), us(7)),
            Session(us(9), longest=us(30)),
            tumbling(3),
            Sliding(5, 2),
        ]
    ),
    lag=st.sampled_from([10, 200]),
    windows=st.sampled_from([1, 3, FOREVER]),
    expired=st.booleans(),
    seed=st.integers(0, 1_000),
)
def test_failures_and_new_processes_change_no_window(
    some, size, window, lag, windows, expired, seed
) -> None:
    tuples = numbered(some)
    tasks = [
        Task(window, lag=lag, tells_expired=expired),
        Task(
            window, lag=lag, tells_expired=expired, limits=Limits(windows=windows),
            fails=Random(seed),
        ),
    ]  # fmt: skip
    draw = Random(seed)
    for task in tasks:
        for part in cut(tuples, size):
            task.step(part)
            if task.fails and draw.random() < 0.5:
                task.restart()
        task.fails = None
        task.end()
    calm, shaken = tasks
    assert shaken.late == calm.late
    assert sorted(shaken.closed) == sorted(calm.closed)
    assert sorted(shaken.new) == sorted(calm.new)
    if expired:
        assert sorted(shaken.expired) == sorted(calm.expired)


def test_the_windows_that_were_counted_are_read_as_earlier_versions_wrote_them():
    before, now = (CountWindows(3, 1, [7, 8], by_time=False, tells_expired=False) for _ in range(2))
    before.load({"7": [4, 1700, 0, 2], "8": [1, 1701, 3, 0]})
    assert before.dump() == {"counted": "7 4 1700 0 2;8 1 1701 3 0"}
    now.load(before.dump())
    assert now.dump() == before.dump()
    now.load({})
    assert now.dump() == before.dump()

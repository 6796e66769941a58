"""The windows of one task, against a model that knows all tuples and takes its time."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from time import process_time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercel import ConfigValueError, Session, Sliding, tumbling
from tiercel.acker.ids import EXTRA
from tiercel.spark_jobs.kinds.windows.assigners import CountWindows, Limits, assigner_of
from tiercel.spark_jobs.kinds.windows.rows import (
    FOREVER,
    GOOD,
    NEVER,
    FirstOpen,
    HeldRows,
    Keys,
    Watermark,
    numbers_in,
)

KEYS = 3
DIGESTS = [key * 7 + 100 for key in range(KEYS)]
US = timedelta(microseconds=1)
LATE = 3
NO_LIMITS = Limits()


class Task:
    """Does as the engine does with the rows of one task; it dies whenever the test wants it to."""

    def __init__(self, window, lag=0, *, by_time=True, tells_expired=False):
        self.made = lambda: assigner_of(
            window, DIGESTS, by_time=by_time, tells_expired=tells_expired
        )
        self.windows = self.made()
        self.rows = HeldRows()
        self.watermark = Watermark([1], lag, 1e9, 0.0)
        # Per window of a key, in the order in which they fired: ids of all, of the new and of the
        # expired tuples.
        self.fired = defaultdict(list)
        # The numbers under which each tuple emitted.
        self.numbers = defaultdict(list)
        self.late = []
        self.left = set()
        # Number of open windows after each batch.
        self.open = []
        self.attempts = defaultdict(int)

    def add(self, tuples, *, judge=True):
        """Each tuple is its id, its key and its timestamp."""
        ids, keys, times = (np.array(part, np.int64) for part in zip(*tuples, strict=True))
        before = self.watermark.follow(1, times, 0.0)
        columns = dict.fromkeys(HeldRows.NAMES, np.zeros(len(ids), np.int64))
        columns |= {"time": times, "key": keys, "ms": ids, "arrived": times}
        before = before if judge else np.full(len(ids), NEVER)
        late = self.windows.judge(self.rows, columns, before)
        columns["status"] = np.where(late, LATE, GOOD)
        self.late += ids[late].tolist()
        rows = self.rows.add(columns)
        self.windows.added(self.rows, rows[~late])
        self.rows.remove(rows[late])
        self.left.update(ids[late].tolist())

    def close_all(self, limits=NO_LIMITS, fails=lambda _: False):
        """Close what is due; windows that fail are tried again at once."""
        while True:
            watermark = self.watermark.advance(0.0)
            if self.windows.next_end(self.rows) > watermark:
                self.windows.passed(watermark)
                return
            plan = self.windows.plan(self.rows, watermark, frozenset(), limits)
            again = self.windows.plan(
                self.rows, plan.watermark, frozenset(), Limits(windows=plan.number)
            )
            assert [one.rows.tolist() for one in again.closings] == [
                one.rows.tolist() for one in plan.closings
            ]
            failed = {one.id for one in plan.closings if fails(one)}
            leaving = self.windows.leaving(self.rows, plan, failed)
            assert leaving.tolist() == sorted(set(leaving.tolist()))
            if not (plan.closings or leaving.size):
                self.windows.passed(watermark)
                return
            for one in plan.closings:
                self.attempts[one.id] += 1
            blocked = set()
            for one in plan.closings:
                blocked |= {one.key} if one.id in failed else set()
                # A key of windows of tuples waits for its first window.
                waits = type(self.windows).__name__ == "CountWindows" and one.key in blocked
                if one.id not in failed and not waits:
                    self._fire(one)
            self.windows.close(self.rows, plan, failed)
            self.left.update(self.ids(leaving))
            self.rows.remove(leaving)
            self.rows.compact()

    def _fire(self, one):
        ids = self.ids(one.rows)
        self.fired[one.key].append(
            (one.start, one.end, ids, self.ids(one.rows[one.new]), self.ids(one.expired))
        )
        assert not self.left & set(ids)
        for each, number in zip(ids, one.numbers.tolist(), strict=True):
            assert number not in self.numbers[each]
            self.numbers[each].append(number)

    def ids(self, rows):
        return self.rows["ms"][rows].tolist()

    def dies(self):
        """A new attempt begins with what is held, and the state."""
        state = self.windows.dump()
        held = np.flatnonzero(self.rows.alive)
        tuples = [
            tuple(self.rows[name][row] for name in ("ms", "key", "time")) for row in held.tolist()
        ]
        at, highest = self.watermark.at, self.watermark.highest[1]
        self.windows = self.made()
        self.windows.load(state)
        self.rows = HeldRows()
        if tuples:
            self.add(tuples, judge=False)
        self.watermark.at, self.watermark.highest[1] = at, highest

    def ends(self):
        self.watermark.at = FOREVER // 2
        self.close_all()


def run(task, batches, limits, deaths=frozenset(), failing=frozenset()):
    """Feed the batches; windows whose first attempts are in ``failing`` fail."""
    tries = iter(range(10**9))
    for number, batch in enumerate(batches):
        task.add(batch)
        task.close_all(limits, lambda _: next(tries) in failing)
        task.open.append(task.windows.open_windows(task.rows))
        if number in deaths:
            task.dies()
            assert task.windows.open_windows(task.rows) == task.open[-1]
    task.ends()
    assert type(task.windows) is CountWindows or task.windows.open_windows(task.rows) == 0
    return task


def so_far(batches, lag, number):
    """Return the tuples of the batches up to this one, each with the watermark before it; and the
    watermark after them.
    """
    known = list(in_time(batches[: number + 1], lag))
    return known, max(time for *_, time, _ in known) - lag


def stream(draw, lag):
    """Draw batches of tuples, and where they are late."""
    times = draw(st.lists(st.integers(0, 60), min_size=1, max_size=60))
    high = 0
    tuples = []
    for number, step in enumerate(times):
        high = max(high, high + step // 8)
        tuples.append((number, draw(st.integers(0, KEYS - 1)), high - step % (lag + 3)))
    cuts = sorted(draw(st.sets(st.integers(1, len(tuples)), max_size=6)))
    pairs = zip([0, *cuts], [*cuts, len(tuples)], strict=True)
    return [tuples[first:last] for first, last in pairs if first < last]


def in_time(batches, lag):
    """Yield each tuple with the watermark before it."""
    at = NEVER
    for each in (tup for batch in batches for tup in batch):
        yield (*each, at)
        at = max(at, each[2] - lag)


SETTINGS = settings(max_examples=150, deadline=None)
LIMITS = st.sampled_from([Limits(), Limits(rows=1), Limits(rows=7), Limits(windows=1)])
DEATHS = st.sets(st.integers(0, 6))
FAILING = st.sets(st.integers(0, 12))


@SETTINGS
@given(
    st.data(), st.integers(0, 6), st.integers(1, 12), st.integers(1, 12), LIMITS, DEATHS, FAILING
)
def test_windows_in_time_have_what_the_model_has(data, lag, one, other, limits, deaths, failing):
    length, slide = max(one, other), min(one, other)
    batches = stream(data.draw, lag)
    expires = data.draw(st.booleans())
    task = Task(Sliding(length * US, slide * US), lag, tells_expired=expires)
    run(task, batches, limits, deaths, failing)
    windows = defaultdict(list)
    late = []
    for id_, key, time, at in in_time(batches, lag):
        ends = [
            start + length
            for start in range((time - length) // slide * slide, time + 1, slide)
            if start <= time < start + length
        ]
        if ends[-1] <= at:
            late.append(id_)
        for end in ends:
            if end > at and ends[-1] > at:
                windows[key, end].append((time, id_))
    for number, open_ in enumerate(task.open):
        known, watermark = so_far(batches, lag, number)
        ids = {id_ for id_, *_ in known}
        assert open_ == sum(
            end > watermark and any(id_ in ids for _, id_ in of) for (_, end), of in windows.items()
        )
    assert sorted(task.late) == late
    found = {(key, end): ids for key, of in task.fired.items() for _, end, ids, *_ in of}
    assert found == {which: [id_ for _, id_ in sorted(of)] for which, of in windows.items()}
    assert sum(map(len, task.fired.values())) == len(windows)
    assert task.left == {id_ for id_, *_ in in_time(batches, lag)}
    for key, of in task.fired.items():
        for start, end, ids, new, expired in of:
            assert start == end - length
            # A tuple that was late for the window before is new, whatever its timestamp.
            before = windows.get((key, end - slide), ())
            assert new == [id_ for id_ in ids if id_ not in {one for _, one in before}]
            gone = {id_ for time, id_ in before if time < start}
            assert set(expired) == (gone if expires else set())


def sessions_of(batches, gap, longest):
    """Return the sessions of each key: beginning, end and ids."""
    found = defaultdict(list)
    for key in range(KEYS):
        tuples = sorted((time, id_) for [(id_, own, time)] in batches if own == key)
        session = []
        for time, id_ in [*tuples, (FOREVER, None)]:
            if session and (time - session[-1][0] >= gap or time - session[0][0] >= longest):
                end = min(session[-1][0] + gap, session[0][0] + longest)
                found[key].append((session[0][0], end, [id_ for _, id_ in session]))
                session = []
            session.append((time, id_))
    return found


@SETTINGS
@given(st.data(), st.integers(0, 6), st.integers(1, 9), st.integers(1, 30), LIMITS, DEATHS, FAILING)
def test_sessions_have_what_the_model_has(data, lag, gap, more, limits, deaths, failing):
    batches = stream(data.draw, lag)
    known = [(each, at) for *each, at in in_time(batches, lag)]
    batches = [[tuple(each)] for each, at in known if each[2] >= at]
    longest = gap + more
    task = Task(Session(gap * US, longest * US), lag)
    run(task, batches, limits, deaths, failing)
    expected = sessions_of(batches, gap, longest)
    for number, open_ in enumerate(task.open):
        known = sessions_of(batches[: number + 1], gap, longest)
        _, watermark = so_far(batches, lag, number)
        assert open_ == sum(end > watermark for of in known.values() for _, end, _ in of)
    assert task.late == []
    # A session that failed may close after the next one.
    assert {key: sorted(one[:3] for one in of) for key, of in task.fired.items()} == {
        key: of for key, of in expected.items() if of
    }
    assert len(task.left) == len(batches)


def test_windows_of_timestamps_that_are_far_apart_are_counted_too():
    keys = np.array([0, 10**6, 0, 7, 0])
    firsts, lasts = np.array([5, 5, -(2**61), 6, 6]), np.array([6, 5, -(2**61), 8, 7])
    assert numbers_in(keys, firsts, lasts) == 3 + 1 + 1 + 3
    assert numbers_in(keys[:0], firsts[:0], firsts[:0]) == 0


def test_a_session_takes_a_late_tuple_only_while_it_is_open():
    task = Task(Session(10 * US))
    task.add([(1, 0, 100)])
    task.add([(2, 1, 111)])
    task.add([(3, 0, 99)])
    assert task.late == []
    task.close_all()
    task.add([(4, 0, 98), (5, 1, 101)])
    assert task.late == [4, 5]
    assert [ids for *_, ids, _, _ in task.fired[0]] == [[3, 1]]


@SETTINGS
@given(st.data(), st.integers(0, 6), st.integers(1, 9), st.integers(1, 9), LIMITS, DEATHS, FAILING)
def test_windows_of_tuples_have_what_the_model_has(data, lag, one, other, limits, deaths, failing):
    length, slide = max(one, other), min(one, other)
    by_time = data.draw(st.booleans())
    expires = data.draw(st.booleans())
    batches = stream(data.draw, lag)
    if not by_time:
        batches = [[(id_, key, id_) for id_, key, _ in batch] for batch in batches]
    task = Task(Sliding(length, slide), lag, by_time=by_time, tells_expired=expires)
    run(task, batches, limits, deaths, failing)
    late = [id_ for id_, _, time, at in in_time(batches, lag) if by_time and time < at]
    assert sorted(task.late) == late
    left = set(late)
    for key in range(KEYS):
        tuples = sorted(
            (time, id_)
            for id_, own, time, _ in in_time(batches, lag)
            if own == key and id_ not in late
        )
        ids = [id_ for _, id_ in tuples]
        expected = []
        for end in range(slide, len(ids) + 1, slide):
            first = max(0, end - length)
            gone = ids[max(0, end - slide - length) : first] if expires else []
            expected.append((ids[first:end], ids[end - slide : end], gone))
            left |= set(ids[: max(0, end - (length if expires else length - slide))])
        assert [one[2:] for one in task.fired[key]] == expected
    assert task.left == left
    for number, open_ in enumerate(task.open):
        known, watermark = so_far(batches, lag, number)
        assert open_ == sum(
            open_in([time for id_, own, time, _ in known if own == key and id_ not in late],
                    watermark if by_time else FOREVER, length, slide)
            for key in range(KEYS)
        )  # fmt: skip


def open_in(times, watermark, length, slide):
    """Return the number of windows of one key's tuples that have a tuple and have not closed."""
    closed = sum(time < watermark for time in times) // slide
    some = [range(max(0, end - length), end) for end in range(slide, len(times) + length, slide)]
    return sum(any(place < len(times) for place in window) for window in some[closed:])


def test_a_later_attempt_finds_the_first_open_window_of_each_row_again():
    opened, later = FirstOpen(), FirstOpen()
    # The ends in each entry.
    entries = {1: [10, 20], 2: [20, 20], 3: [20, 30, 30], 4: [30]}
    rows = {
        ms: {"ms": np.full(len(ends), ms), "seq": np.zeros(len(ends)), "row": np.arange(len(ends))}
        for ms, ends in entries.items()
    }
    for ms, ends in entries.items():
        assert opened.of(rows[ms], np.array(ends)).tolist() == ends
    later.load(json.loads(json.dumps(opened.dump(5))))
    for ms, ends in entries.items():
        assert later.of(rows[ms], np.full(len(ends), NEVER)).tolist() == ends
    assert later.dump(5) == opened.dump(5)


def test_a_source_that_is_idle_does_not_hold_the_watermark_back():
    watermark = Watermark([1, 2], 5, 60.0, 0.0)
    assert watermark.follow(1, np.array([100, 90, 130]), 0.0).tolist() == [NEVER] * 3
    assert watermark.advance(59.0) == NEVER
    assert watermark.follow(1, np.array([140]), 59.0).tolist() == [NEVER]
    assert watermark.reaches(135) == 60.0
    assert watermark.advance(60.0) == 135
    assert watermark.follow(2, np.array([20]), 61.0).tolist() == [135]
    # Both are idle: time goes on by the clock.
    assert watermark.reaches(2_000_135) == 123.0
    assert watermark.advance(121.5) == 500_135
    assert watermark.advance(123.0) == 2_000_135


def test_a_source_that_can_send_nothing_stops_the_clock_and_waits_for_no_idle_source():
    """Its spout is full of messages that the windows hold until the other source is idle."""
    watermark = Watermark([1, 2], 0, 60.0, 0.0)
    watermark.follow(1, np.array([100]), 0.0)
    for now in range(1, 600):
        watermark.stand([1], float(now))
        assert watermark.advance(float(now)) == (NEVER if now < 60 else 100)
        assert watermark.reaches(100) == 60.0
    assert watermark.advance(658.0) == 100
    assert watermark.advance(659.5) == 500_100


def test_a_source_whose_timestamps_are_all_refused_is_idle():
    """It says nothing about the time, and the windows of the others would never close."""
    watermark = Watermark([1, 2], 0, 60.0, 0.0)
    watermark.follow(2, np.array([0]), 0.0)
    for now in range(1, 100):
        watermark.follow(1, np.array([now]), float(now))
        watermark.follow(2, np.array([NEVER, NEVER]), float(now))
        assert watermark.advance(float(now)) == (0 if now < 60 else now)


def test_extra_tasks_that_are_gone_are_forgotten():
    """Executors come and go thousands of times in a run, and each step writes what is known."""
    watermark = Watermark([2, 3], 0, 60.0, 0.0)
    for number in range(1, 100):
        now = 300 * number
        for source, time in ((3, now - 5), (2, now), (number * EXTRA + 2, now - 1)):
            watermark.follow(source, np.array([time]), float(now))
        assert watermark.advance(float(now)) == now - 5
        assert watermark.reaches(now - 1) == now + 60
    assert len(watermark.highest) <= 4
    # An extra task whose timestamp is the highest one is not: event time goes on from there.
    watermark.follow(100 * EXTRA + 2, np.array([40_000]), 40_000.0)
    watermark.follow(101 * EXTRA + 2, np.array([39_000]), 50_000.0)
    assert watermark.advance(51_000.0) == 40_000 + 940_000_000


def test_the_watermark_of_two_sources_is_that_of_the_slower_one():
    watermark = Watermark([1, 2], 0, 60.0, 0.0)
    watermark.follow(1, np.array([100]), 1.0)
    assert watermark.follow(2, np.array([40, 70, 120, 150]), 1.0).tolist() == [NEVER, 40, 70, 100]
    assert watermark.at == 100


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tumbling(timedelta(0)), "must be above 0"),
        (lambda: tumbling(True), "must be a timedelta or a number of tuples"),
        (lambda: Sliding(timedelta(1), 5), "both as durations"),
        (lambda: Sliding(5, 6), "tuples between two windows would be in none"),
        (lambda: Sliding(timedelta(days=9), timedelta(seconds=1)), "slide further"),
        (lambda: Session(5), "must be a timedelta above 0"),
        (lambda: Session(timedelta(hours=1)), "raise longest"),
    ],
)
def test_a_window_that_cannot_be_is_refused(make, said):
    with pytest.raises(ConfigValueError, match=said):
        make()


def session_rows(times):
    """Return the columns of rows of one key."""
    columns = dict.fromkeys(HeldRows.NAMES, np.zeros(len(times), np.int64))
    return columns | {"time": np.array(times, np.int64)}


@given(
    held=st.lists(st.integers(0, 60), max_size=8),
    times=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    watermark=st.integers(0, 80),
)
def test_a_tuple_near_an_open_session_is_in_time(held, times, watermark):
    gap = 5
    windows = assigner_of(Session(gap * US), DIGESTS, by_time=True, tells_expired=False)
    rows = HeldRows()
    rows.add(session_rows(held))
    late = windows.judge(rows, session_rows(times), np.full(len(times), watermark))
    known = list(held)
    for at, time in enumerate(times):
        expected = time + gap <= watermark and all(abs(time - one) >= gap for one in known)
        assert late[at] == expected
        known += [] if expected else [time]


def test_held_tuples_of_a_busy_key_that_come_again_are_judged_quickly():
    """Comparing each with each took 38 s for 30,000 tuples, by CPU time."""
    windows = assigner_of(Session(5_000 * US), DIGESTS, by_time=True, tells_expired=False)
    times = np.arange(20_000) * 20
    rows = HeldRows()
    rows.add(session_rows(times))
    began = process_time()
    for first in range(0, len(times), 2_000):
        again = session_rows(times[first : first + 2_000])
        assert not windows.judge(rows, again, np.full(2_000, int(times[-1]))).any()
    assert process_time() - began < 2


@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize("fields", [("x",), ("x", "y")])
def test_every_nan_and_every_zero_is_one_key(count, fields):
    numbered, digests = [], set()
    for zeros in ([-0.0, 0.0], [0.0, -0.0]):
        column = pa.array([*zeros, *(float("nan") for _ in range(count))])
        values = pa.record_batch({"x": column, "y": column})
        chunk = SimpleNamespace(route=SimpleNamespace(component="s", stream="t"), values=values)
        keys = Keys({("s", "t"): fields})
        numbered += [keys.of(chunk, np.arange(values.num_rows)).tolist() for _ in range(2)]
        digests.add(tuple(keys.digests))
    assert numbered == [[0, 0] + [1] * count] * 4
    assert len(digests) == 1, "which zero came first must not matter"


@pytest.mark.parametrize("fields", [("x",), ("x", "y")])
def test_equal_decimals_of_two_scales_are_one_key_with_one_name(fields):
    column = pa.array([Decimal("1.5"), Decimal(20), Decimal(0)])
    named = []
    for scales in ((1, 18), (18, 1)):
        keys = Keys({("s", "t"): fields})
        for scale in scales:
            one = column.cast(pa.decimal128(38, scale))
            values = pa.record_batch({"x": one, "y": one})
            chunk = SimpleNamespace(route=SimpleNamespace(component="s", stream="t"), values=values)
            assert keys.of(chunk, np.arange(3)).tolist() == [0, 1, 2]
        named.append((keys.digests, [keys.text(number) for number in range(3)]))
    assert named[0] == named[1], "which scale came first must not matter"

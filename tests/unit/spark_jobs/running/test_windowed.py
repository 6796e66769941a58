"""Windowed bolts: no message is acked before everything emitted for its windows is done, whatever
dies, fails or raises.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from random import Random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from tests.support.pump import Killed, Pump, Source, killed_after
from tiercel import (
    AggregatingBolt,
    BasicBolt,
    Reject,
    Session,
    Sliding,
    TopologyBuilder,
    TopologyError,
    WindowedBolt,
    tumbling,
)
from tiercel.acker.inbox.contract import OpenWindows
from tiercel.acker.metrics.contract import total_of
from tiercel.queues.message.identity import Identity
from tiercel.spark_jobs.kinds.windows.assigners import TimeWindows
from tiercel.spark_jobs.kinds.windows.rows import AHEAD, FOREVER, GOOD, NULL, Timestamps
from tiercel.spark_jobs.topology.windowing import Windowing
from tiercel.workers.testing.engine import SimulatedClock

MS = timedelta(milliseconds=1)
FIELDS = "n long, key string, at long"


class Sums(WindowedBolt):
    """Emits the tuples of each window."""

    window = Sliding(20 * MS, 10 * MS)
    timestamp_field = "at"
    output_streams = {"default": "numbers array<long>", "late": "n long"}  # noqa: RUF012 - it is the contract
    raises: int = 0

    def prepare(self, config, context):
        self.calls = 0

    def execute(self, window, collector):
        self.calls += 1
        collector.emit([[tup["n"] for tup in window]])
        if window.new:
            collector.emit([[tup["n"] for tup in window.new]], anchors=window.new)
        if self.calls <= self.raises:
            raise ValueError("it is busy")


class Keep(BasicBolt):
    """Holds nothing, and is the end of each tree."""

    def execute(self, tup, collector):
        pass


def topology(bolt, *, parallelism=1, ends=2):
    builder = TopologyBuilder("windows")
    builder.set_spout("spout", Source(FIELDS))
    builder.set_bolt("windows", bolt, parallelism=parallelism).fields_grouping("spout", "key")
    builder.set_bolt("end", Keep(), parallelism=ends).shuffle_grouping("windows")
    builder.set_bolt("late", Keep()).shuffle_grouping(
        "windows", "late" if "late" in bolt.output_streams else "default"
    )
    return builder.build()


def pump_of(bolt, standstill_s=0.0, **options):
    clock = SimulatedClock()
    pump = Pump(topology(bolt, **options), simulated=clock, standstill_s=standstill_s)
    pump.clock = clock
    return pump


def later(pump, seconds):
    pump.clock.move_to(pump.clock() + seconds)


def fed(pump, *tuples):
    """Feed tuples of one key, as numbers and timestamps, each by itself."""
    roots = {}
    for number, at in tuples:
        [roots[number]] = pump.feed([number, "k", at])
    return roots


def test_a_tuple_in_two_windows_has_two_numbers_of_emissions():
    """With one number the edges of its first emissions would be equal, and cancel out of the
    ack-val: it would be acked while both wait to be executed.
    """
    pump = pump_of(Sums(), ends=1)
    roots = fed(pump, (1, 5), (2, 15), (3, 45))
    pump.work_at("windows")
    pump.read()
    assert pump.rows("end") == [([1],), ([1],), ([1, 2],), ([2],), ([2],)]
    assert pump.acked == []
    [end] = pump.topology.task_ids("end")
    for _ in range(6):
        pump.attempts[end].turn()
        pump.read()
    assert set(pump.acked) == {roots[1], roots[2]}


@pytest.mark.parametrize("effects", range(12))
def test_nothing_is_acked_while_one_of_its_emissions_waits(effects):
    """A process dies at each effect while a tuple is in several windows."""
    pump = pump_of(Sums(), ends=1)
    roots = fed(pump, *((n, 7 * n) for n in range(1, 10)))
    pump.send()
    with killed_after(effects):
        pump.work(*pump.topology.task_ids("windows"))
    pump.take_over(*pump.topology.task_ids("windows"))
    pump.work(*pump.topology.task_ids("windows"))
    pump.read()
    assert pump.acked == []
    waiting = Counter(tuple(numbers) for [numbers] in pump.rows("end"))
    # Windows end at 10, 20 … 60; 63 has come.
    ends = range(10, 61, 10)
    expected = Counter()
    for end in ends:
        expected[tuple(n for n in range(1, 10) if end - 20 <= 7 * n < end)] += 1
        expected[tuple(n for n in range(1, 10) if end - 10 <= 7 * n < end)] += 1
    assert waiting == Counter({key: count for key, count in expected.items() if key})
    pump.run()
    # Those in a window that is still open are not acked: 7 * n >= 50.
    assert set(pump.acked) == {roots[n] for n in range(1, 8) if 7 * n < 50}
    assert not pump.failed


def test_a_window_that_raises_is_tried_again_and_its_emissions_are_dropped():
    bolt = Sums()
    bolt.raises = 1
    pump = pump_of(bolt, ends=1)
    roots = fed(pump, (1, 5), (2, 15), (3, 45))
    pump.work_at("windows")
    pump.read()
    # The window that ends at 10 failed; the others have closed.
    assert pump.rows("end") == [([1, 2],), ([2],), ([2],)]
    assert pump.acked == []
    assert not pump.failed
    later(pump, 1)
    pump.work_at("windows")
    assert pump.rows("end")[3:] == [([1],), ([1],)]
    pump.run()
    assert set(pump.acked) == {roots[1], roots[2]}
    totals = total_of(pump.metrics.totals(), "windows")
    assert (totals["windows_closed"], totals["windows_failed"]) == (3, 1)


@pytest.mark.parametrize("effects", range(14))
def test_a_tuple_is_not_in_a_window_that_was_over_when_it_came_whatever_dies(effects):
    """The watermark passed the ends of two windows amid an entry that is still held."""
    pump = pump_of(Sums(), ends=1)
    tasks = pump.topology.task_ids("windows")
    pump.feed([1, "k", 15], [2, "k", 28])
    pump.send()
    # The null leaves in a step of its own, before the window that ends at 20 closes.
    _, null = pump.feed([3, "k", 19], [4, "k", None])
    pump.send()
    with killed_after(effects):
        pump.work(*tasks)
    pump.take_over(*tasks)
    pump.work(*tasks)
    pump.read()
    assert set(pump.failed) == {null}
    assert pump.rows("end") == [([1],), ([1],)]


def test_a_late_copy_is_in_the_windows_of_the_tuple_that_it_replaced_though_a_process_dies():
    """Both windows wait for another attempt while the message comes again. Without its windows the
    new process would ack it, and it would be in none.
    """
    bolt = Sums()
    bolt.raises = 2
    pump = pump_of(bolt, ends=1)
    tasks = pump.topology.task_ids("windows")
    identities = [Identity(b"%d" % number, 1 << 64 | number) for number in (1, 2)]
    [first, _] = pump.feed([1, "k", 5], [2, "k", 45], identities=identities)
    pump.work_at("windows")
    [copy] = pump.feed([1, "k", 5], identities=identities[:1])
    pump.run()
    assert pump.acked == [first]
    pump.take_over(*tasks)
    for _ in range(3):
        later(pump, 20)
        pump.work_at("windows")
    assert pump.rows("end") == [([1],)] * 3
    assert copy not in pump.acked
    pump.run()
    assert pump.acked == [first, copy]


def test_windows_of_many_keys_that_fail_together_are_found_together(monkeypatch):
    """A database that is away fails them all; with a search for each, a step took minutes."""
    searches = []
    search = TimeWindows._at
    monkeypatch.setattr(TimeWindows, "_at", lambda *given: searches.append(1) or search(*given))
    bolt = Sums()
    bolt.raises = 400
    pump = pump_of(bolt)
    roots = pump.feed(*([n, f"k{n}", 5] for n in range(200)))
    pump.feed([-1, "closes", 45])
    for _ in range(3):
        pump.run()
        later(pump, 20)
    assert set(pump.acked) == set(roots)
    assert total_of(pump.metrics.totals(), "windows")["windows_failed"] == 400
    # Windows end at 10 and at 20.
    assert len(searches) < 20


class GrowingSession(Sums):
    window = Session(10 * MS, longest=1_000 * MS)
    raises = 1


def test_a_failed_session_that_grows_is_not_waited_for():
    pump = pump_of(GrowingSession(), ends=1)
    fed(pump, (1, 5), (2, 100))
    pump.run()
    fed(pump, (3, 14))
    pump.run()
    check_that_it_rests(pump)


class SecondBusy(Sums):
    window = tumbling(2)

    def execute(self, window, collector):
        self.calls += 1
        if self.calls == 2:
            raise ValueError("it is busy")


def test_a_failed_window_with_another_number_later_is_not_waited_for():
    """The key has no window before it any more, so its numbers begin anew."""
    pump = pump_of(SecondBusy(), ends=1)
    fed(pump, (1, 5), (2, 6), (3, 7), (4, 8), (5, 100))
    pump.run()
    check_that_it_rests(pump)


def check_that_it_rests(pump):
    """Its next step is never due for longer than one turn."""
    [task] = pump.topology.task_ids("windows")
    for _ in range(3):
        later(pump, 60)
        pump.run()
    assert (pump.attempts[task].next_at or FOREVER) > pump.clock()
    assert len(pump.acked) >= 3


def test_a_window_that_always_raises_becomes_dead_letters():
    bolt = Sums()
    bolt.raises = 1_000
    pump = pump_of(bolt)
    roots = fed(pump, (1, 5), (2, 45))
    for _ in range(60):
        pump.run()
        later(pump, 20)
        if pump.failed:
            break
    assert pump.acked == []
    assert set(pump.failed) == {roots[1]}
    assert "its window failed 20 times" in pump.failed[roots[1]]


class Picky(Sums):
    """Fails tuple 2 in its first window."""

    def execute(self, window, collector):
        super().execute(window, collector)
        for tup in window:
            if tup["n"] == 2:
                collector.fail(tup, Reject("it is 2"))


def test_a_tuple_that_fails_in_one_window_leaves_the_others():
    pump = pump_of(Picky(), ends=1)
    roots = fed(pump, (1, 15), (2, 16), (3, 45))
    pump.work_at("windows")
    pump.read()
    # Emissions that are anchored to good tuples too leave: their trees need them.
    assert pump.rows("end") == [([1, 2],), ([1, 2],), ([1],)]
    pump.run()
    assert pump.acked == [roots[1]]
    assert set(pump.failed) == {roots[2]}
    assert pump.failed[roots[2]].endswith("it is 2")


def test_late_null_and_future_timestamps_are_rejected_and_do_not_move_the_watermark():
    pump = pump_of(Sums())
    later(pump, 1_000)
    roots = fed(pump, (1, 100), (2, 5), (3, None), (4, 10**12), (5, 105))
    pump.run()
    assert {root: pump.failed.get(root, "") for root in roots.values()} == {
        roots[1]: "",
        roots[2]: "windows: late: its timestamp 'at' is 1970-01-01 00:00:00.005000, and its last "
        "window has closed: raise lag, or idle if its source may be silent for longer than "
        "0:01:00, or declare a late_stream",
        roots[3]: "windows: its timestamp 'at' is null",
        roots[4]: "windows: its timestamp 'at' is 2001-09-09 01:46:40, in the future by more than "
        "max_ahead (0:01:00): look at the clock of its sender, and at timestamp_unit ('ms')",
        roots[5]: "",
    }
    totals = total_of(pump.metrics.totals(), "windows")
    assert totals["windows_late"] == 1
    assert totals["windows_refused"] == 2


class Late(Sums):
    late_stream = "late"


def test_late_tuples_are_acked_when_the_late_stream_is_done():
    pump = pump_of(Late())
    roots = fed(pump, (1, 100), (2, 5), (3, 7))
    pump.work_at("windows")
    pump.read()
    assert pump.acked == []
    assert pump.rows("late") == [(2,), (3,)]
    pump.run()
    assert set(pump.acked) == {roots[2], roots[3]}


def test_a_flood_of_late_tuples_is_emitted_as_late_and_holds_up_no_window():
    pump = pump_of(Late(), ends=1)
    [open_] = pump.feed([-1, "k", 1_005])
    late = []
    for first in range(0, 20_000, 4_000):
        rows = range(first, first + 4_000)
        late += pump.feed(*([n, f"k{n % 100}", n % 900] for n in rows))
        pump.work_at("windows")
    [closes] = pump.feed([-2, "k", 1_030])
    pump.work_at("windows")
    assert [-1] in [numbers for (numbers,) in pump.rows("end")]
    pump.run()
    assert set(pump.acked) == {open_, *late}
    assert not pump.failed
    assert closes not in pump.acked
    totals = pump.metrics.totals()
    assert total_of(totals, "windows")["windows_late"] == total_of(totals, "late")["executed"]
    assert total_of(totals, "late")["executed"] == 20_000


@pytest.mark.parametrize("window", [tumbling(25 * MS), Sliding(30 * MS, 15 * MS), Session(5 * MS)])
def test_after_an_upgrade_messages_that_are_not_acked_are_in_windows_of_the_new_length(window):
    pump = pump_of(Sums(), ends=1)
    roots = fed(pump, *((n, 3 * n) for n in range(1, 10)))
    pump.run()
    left = {n for n, root in roots.items() if root not in pump.acked}
    assert 0 < len(left) < 9
    upgraded = Sums()
    upgraded.window = window
    newer = Pump(
        topology(upgraded, ends=1),
        inboxes=pump.inboxes,
        ledger=pump.ledger,
        simulated=pump.clock,
    )
    newer.begin_run("upgraded")
    # As the driver does, which has their messages emitted again.
    for task, entries in newer.inboxes.drain("upgraded"):
        newer.inboxes.discard("upgraded", task, [entry.position for entry in entries])
    again = fed(newer, *((n, 3 * n) for n in sorted(left)), (10, 1_000))
    newer.work_at("windows")
    assert {n for (numbers,) in newer.rows("end") for n in numbers} == left
    newer.run()
    assert set(newer.acked) == {again[n] for n in left}
    assert not newer.failed


class Totals(AggregatingBolt):
    window = tumbling(10 * MS)
    timestamp_field = "at"
    output_fields = "total long, count long"

    def create(self):
        return 0

    def add(self, accumulator, tup):
        return accumulator + tup["n"]

    def result(self, accumulator, window, collector):
        collector.emit([accumulator, window.count])


def test_an_accumulator_has_all_tuples_of_its_window():
    pump = pump_of(Totals(), ends=1)
    roots = fed(pump, *((n, 3 * n) for n in range(1, 10)))
    pump.work_at("windows")
    assert pump.rows("end") == [(1 + 2 + 3, 3), (4 + 5 + 6, 3)]
    pump.run()
    assert set(pump.acked) == {roots[n] for n in range(1, 7)}


class Forgetful(Totals):
    def add(self, accumulator, tup):
        accumulator += tup["n"]


def test_an_accumulator_that_add_does_not_return_is_named():
    pump = pump_of(Forgetful(), ends=1)
    roots = fed(pump, (1, 1), (2, 20))
    pump.run()
    assert set(pump.failed) == {roots[1]}
    assert "'windows': add returned None: return the accumulator" in pump.failed[roots[1]]


def test_a_number_in_another_unit_is_named_once(caplog):
    pump = pump_of(Totals(), ends=1)
    fed(pump, (1, 1_790_000_000), (2, 1_790_000_001))
    later(pump, 1_790_000_000)
    pump.run()
    fed(pump, (3, 1_790_000_002))
    pump.run()
    [said] = [one for one in caplog.records if one.event == "timestamps_ancient"]
    assert said.levelname == "WARNING"
    assert "reads a timestamp 'at' as 1970-01-21 17:13:20+00:00" in said.getMessage()
    assert "timestamp_unit = 'ms'" in said.getMessage()


def test_the_room_of_held_tuples_is_free_and_max_held_bounds_them():
    bolt = Totals()
    bolt.max_held = 9_000
    pump = pump_of(bolt)
    for first in range(0, 12_000, 1_000):
        pump.feed(*([n, "k", 5] for n in range(first, first + 1_000)))
        pump.send()
        pump.work(*pump.topology.task_ids("windows"))
    [task] = pump.topology.task_ids("windows")
    waiting = pump.inboxes.figures([task])[task].tuples
    assert 3_000 <= waiting < 3_000 + 4_000
    pump.read()
    assert pump.acked == []


class Full(Sums):
    window = tumbling(timedelta(seconds=10))
    timestamp_field = ""


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_a_full_task_closes_windows_of_processing_time(most):
    bolt = Full()
    bolt.max_held = most
    pump = pump_of(bolt)
    roots = fed(pump, *((n, 0) for n in range(2 * most + 1)))
    for _ in range(10):
        pump.run()
        later(pump, 11)
    assert set(pump.acked) == set(roots.values())
    [task] = pump.topology.task_ids("windows")
    assert (pump.attempts[task].next_at or FOREVER) > pump.clock(), "it must not poll"


class FullStarts(Full):
    max_held = 2

    def execute(self, window, collector):
        collector.emit([[int(window.start.timestamp()), *(tup["n"] for tup in window)]])


@pytest.mark.parametrize("effects", [None, *range(16)])
def test_tuples_that_waited_for_a_full_task_stay_in_their_later_window(effects, monkeypatch):
    """A process dies at each effect; the next one puts its tuples into the same windows."""
    monkeypatch.setattr(Timestamps, "arrival_us", staticmethod(lambda ms, _: ms * 1_000_000))
    pump = pump_of(FullStarts(), ends=1)
    roots = []
    for n in range(1, 7):
        roots += pump.feed([n, "k", 0])
        pump.send()
    pump.work_at("windows")
    later(pump, 11)
    if effects is not None:
        with killed_after(effects):
            for _ in range(6):
                pump.work_at("windows")
                later(pump, 3)
        pump.take_over()
    for _ in range(15):
        pump.work_at("windows")
        later(pump, 3)
    found = [numbers for [numbers] in pump.rows("end")]
    pump.run()
    assert not pump.failed
    assert set(pump.acked) == set(roots)
    assert [n for numbers in found for n in numbers[1:]] == [1, 2, 3, 4, 5, 6]
    starts = [numbers[0] for numbers in found]
    assert sorted(set(starts)) == starts


def test_held_tuples_do_not_look_as_if_they_waited():
    pump = pump_of(Totals())
    fed(pump, (1, 5))
    pump.run()
    [task] = pump.topology.task_ids("windows")
    assert pump.inboxes.figures([task])[task].tuples == 1
    later(pump, 1)
    pump.run()
    assert pump.inboxes.figures([task])[task].tuples == 0
    assert pump.attempts[task].backlog.tuples == 1


def open_at(pump):
    """Let ten seconds pass, and return the open windows of the task as it reports them."""
    later(pump, 10)
    pump.work_at("windows")
    [task] = pump.topology.task_ids("windows")
    return pump.attempts[task].windows


def test_a_task_reports_its_open_windows_its_watermark_and_how_many_tuples_it_holds():
    pump = pump_of(Sums())
    assert open_at(pump) == OpenWindows(number=0, tuples=0)
    fed(pump, (1, 5), (2, 15))
    pump.work_at("windows")
    # The window that ends at 10 has closed; those that end at 20 and 30 are open.
    assert open_at(pump) == OpenWindows(number=2, tuples=2, watermark_us=15_000)
    pump.feed([3, "another", 15])
    pump.work_at("windows")
    assert open_at(pump) == OpenWindows(number=4, tuples=3, watermark_us=15_000)
    pump.take_over(*pump.topology.task_ids("windows"))
    pump.work_at("windows")
    assert open_at(pump) == OpenWindows(number=4, tuples=3, watermark_us=15_000)
    # Without other tuples, its source becomes idle.
    later(pump, 120)
    pump.work_at("windows")
    assert open_at(pump).number == 0


def test_a_task_without_event_time_reports_no_watermark():
    pump = pump_of(Counts())
    fed(pump, (1, 0), (2, 0))
    pump.work_at("windows")
    assert open_at(pump) == OpenWindows(number=1, tuples=2)
    fed(pump, (3, 0))
    pump.work_at("windows")
    assert open_at(pump) == OpenWindows(number=0, tuples=0)


def test_open_windows_are_counted_once_per_second_and_only_if_any_have_changed(monkeypatch):
    counted = []
    monkeypatch.setattr(
        TimeWindows, "open_windows", lambda _, rows: counted.append(rows.count) or len(counted)
    )
    pump = pump_of(Totals())
    [task] = pump.topology.task_ids("windows")
    later(pump, 1)
    for n in range(100):
        fed(pump, (n, n))
        pump.work_at("windows")
    assert len(counted) == 1
    assert open_at(pump) == OpenWindows(number=2, tuples=10, watermark_us=99_000)
    # A step frees the room of tuples that were taken; after it nothing changes.
    open_at(pump)
    known = len(counted)
    waits = []
    fetch = pump.attempts[task].fetch
    pump.attempts[task].fetch = lambda room, wait_s, claims: (
        waits.append(wait_s) or fetch(room, 0.0, claims)
    )
    for _ in range(5):
        later(pump, 1)
        pump.attempts[task].turn(5.0)
    assert len(counted) == known
    fed(pump, (100, 101))
    pump.send()
    pump.attempts[task].turn(5.0)
    pump.attempts[task].turn(5.0)
    later(pump, 0.5)
    pump.attempts[task].turn(5.0)
    assert waits[-1] == pytest.approx(0.5, abs=0.2), "until it may count again"


class Counts(Sums):
    window = tumbling(3)
    timestamp_field = ""


def test_tuples_that_fill_no_window_are_given_back_before_the_broker_takes_them():
    pump = pump_of(Counts())
    roots = fed(pump, (1, 0), (2, 0))
    pump.run()
    assert not pump.failed
    later(pump, 26 * 60)
    pump.run()
    assert set(pump.failed) == set(roots.values())
    [reason] = set(pump.failed.values())
    assert reason.startswith("windows: GivenBack")


def test_a_message_that_is_delivered_again_takes_the_place_of_its_earlier_copy():
    pump = pump_of(Totals(), ends=1)
    pump.feed([1, "k", 1], [2, "k", 2], identities=["a", "b"])
    pump.send()
    pump.work(*pump.topology.task_ids("windows"))
    again = pump.feed([1, "k", 1], [1, "k", 1], [3, "k", 12], identities=["a", "a", "c"])
    pump.work_at("windows")
    assert pump.rows("end") == [(2 + 1, 2)]
    pump.run()
    assert set(again[:2]) <= set(pump.acked)
    assert len(pump.acked) == 4


@pytest.mark.parametrize("window", [tumbling(10 * MS), Sliding(20 * MS, 10 * MS), Session(5 * MS)])
def test_a_copy_that_comes_when_its_window_is_due_and_has_not_closed_is_in_it(window):
    bolt = Sums()
    bolt.window, bolt.lag = window, 5 * MS
    pump = pump_of(bolt, ends=1)
    pump.feed([1, "k", 1], [2, "k", 4], [3, "k", 13], identities=["a", "b", "c"])
    pump.send()
    pump.work(*pump.topology.task_ids("windows"))
    # The first of them moves the watermark past the first windows, and the copies come behind it.
    pump.feed([4, "k", 40], [2, "k", 4], [1, "k", 1], identities=["d", "b", "a"])
    pump.work_at("windows")
    windows = [tuple(numbers) for (numbers,) in pump.rows("end")]
    expected = [(1, 2), (1, 2, 3), (3,)] if window == Sliding(20 * MS, 10 * MS) else [(1, 2), (3,)]
    assert sorted(set(windows)) == sorted(expected)
    pump.run()
    assert not pump.failed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window": None}, "is a WindowedBolt without a window"),
        ({"window": timedelta(minutes=1)}, r"is no window: write tumbling\("),
        ({"timestamp_field": "when"}, "there is no field 'when' for timestamp_field"),
        ({"timestamp_field": "key"}, "must be a timestamp, or a number"),
        ({"timestamp_unit": "min"}, "timestamp_unit must be one of s, ms, us"),
        ({"late_stream": "early"}, "late_stream 'early' is not among its streams"),
        ({"late_stream": "default"}, "field 'numbers' of its late_stream"),
        ({"lag": 5}, "lag must be a timedelta"),
        ({"max_held": 0}, "max_held must be a number of tuples"),
        ({"window": tumbling(timedelta(days=8))}, "use data frames"),
    ],
)
def test_a_bolt_that_cannot_run_is_refused(change, said):
    bolt = Sums()
    for name, value in change.items():
        setattr(bolt, name, value)
    with pytest.raises(TopologyError, match=said):
        topology(bolt)


@pytest.mark.parametrize(
    "config", [{"threads": 2}, {"rate_limit": "5/s"}, {"tick_tuple_freq_secs": 1}]
)
def test_settings_that_are_not_for_windows_are_refused(config):
    builder = TopologyBuilder("windows")
    builder.set_spout("spout", Source(FIELDS))
    builder.set_bolt("windows", Sums(), config=config).fields_grouping("spout", "key")
    with pytest.raises(TopologyError, match=r"WindowedBolt"):
        builder.build()


def test_windows_by_an_array_are_refused():
    builder = TopologyBuilder("windows")
    builder.set_spout("spout", Source(f"{FIELDS}, tags array<string>"))
    builder.set_bolt("windows", Sums()).fields_grouping("spout", "key", "tags")
    with pytest.raises(TopologyError, match=r"has windows by 'tags' of .*, which is an array"):
        builder.build()


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        ("long", "int", True),
        ("decimal(10,0)", "decimal(12,2)", True),
        ("string", "string", True),
        ("long", "string", False),
        ("long", "decimal(10,0)", False),
        ("double", "float", False),
    ],
)
def test_windows_by_fields_of_two_types_are_refused(one, other, fits):
    builder = TopologyBuilder("windows")
    builder.set_spout("orders", Source(f"n long, at long, id {one}"))
    builder.set_spout("payments", Source(f"n long, at long, order {other}"))
    windows = builder.set_bolt("windows", Sums())
    windows.fields_grouping("orders", "id").fields_grouping("payments", "order")
    if fits:
        builder.build()
        return
    with pytest.raises(TopologyError, match=r"by 'id' .*, and by 'order' .*: values of two types"):
        builder.build()


class Marks(WindowedBolt):
    """Appends to a list of each tuple that it gets, as if it were its own."""

    window = Sliding(20 * MS, 10 * MS)
    timestamp_field = "at"
    output_fields = "numbers array<array<long>>"
    tells_expired = True

    def execute(self, window, collector):
        for tup in (*window, *window.expired):
            tup["numbers"].append(0)
        collector.emit([[tup["numbers"] for tup in (*window.expired, *window)]])


class MarksInAdd(AggregatingBolt):
    """As Marks, and refuses tuple 2: so its pane is added again for each window."""

    window = Sliding(20 * MS, 10 * MS)
    timestamp_field = "at"
    output_fields = "numbers array<array<long>>"

    def create(self):
        return []

    def add(self, accumulator, tup):
        tup["numbers"].append(0)
        if tup["numbers"][0] == 2:
            raise ValueError("2 is bad")
        return [*accumulator, tup["numbers"]]

    def merge(self, first, second):
        return first + second

    def result(self, accumulator, window, collector):
        collector.emit([accumulator])


@pytest.mark.parametrize("bolt", [Marks(), MarksInAdd()])
@pytest.mark.parametrize("together", [True, False])
def test_each_window_gets_the_values_as_they_came_whatever_closes_with_it(bolt, together):
    builder = TopologyBuilder("windows")
    builder.set_spout("spout", Source("at long, numbers array<long>"))
    builder.set_bolt("windows", bolt).shuffle_grouping("spout")
    builder.set_bolt("end", Keep()).shuffle_grouping("windows")
    pump = Pump(builder.build(), simulated=SimulatedClock(), standstill_s=0.0)
    for n, at in ((1, 5), (2, 8), (3, 15), (4, 25), (5, 95)):
        pump.feed([at, [n]])
        if not together:
            pump.work_at("windows")
    pump.work_at("windows")
    found = [[tuple(one) for one in numbers] for [numbers] in pump.rows("end")]
    assert (
        found
        == {
            Marks: [
                [(1, 0), (2, 0)],
                [(1, 0), (2, 0), (3, 0)],
                [(1, 0), (2, 0), (3, 0), (4, 0)],
                [(3, 0), (4, 0)],
            ],
            MarksInAdd: [[(1, 0)], [(1, 0), (3, 0)], [(3, 0), (4, 0)], [(4, 0)]],
        }[type(bolt)]
    )


class Deadly(Sums):
    """Kills its process if a window has tuple 13."""

    def execute(self, window, collector):
        super().execute(window, collector)
        if any(tup["n"] == 13 for tup in window):
            raise Killed


def test_a_window_that_kills_its_process_becomes_dead_letters_and_the_others_close():
    pump = pump_of(Deadly(), ends=1)
    roots = fed(pump, (1, 5), (13, 25), (2, 45), (3, 90))
    pump.send()
    for _ in range(8):
        with suppress(Killed):
            pump.run()
            break
        pump.take_over(*pump.topology.task_ids("windows"))
    else:
        pytest.fail("it kills for ever")
    pump.run()
    assert set(pump.failed) == {roots[13]}
    assert set(pump.acked) == {roots[1], roots[2]}


class Dice(Sums):
    """Does other work in each call."""

    draws = iter(range(1_000))

    def execute(self, window, collector):
        collector.emit([[next(self.draws)]])


@pytest.mark.parametrize("effects", range(1, 4))
def test_a_repeat_that_does_other_work_fails_all_messages_of_its_windows_and_keeps_none(effects):
    pump = pump_of(Dice(), ends=1)
    roots = fed(pump, (1, 5), (2, 15), (3, 22))
    pump.send()
    tasks = pump.topology.task_ids("windows")
    with killed_after(effects):
        pump.work(*tasks)
    pump.take_over(*tasks)
    pump.run()
    assert pump.acked == []
    assert set(pump.failed) == {roots[1], roots[2]}
    # Tuple 2, whose next window is open, does not wait for it: its message comes again.
    assert pump.attempts[tasks[0]].backlog.tuples == 1


def with_an_open_window():
    """Return a pump, and the task of its windowed bolt, whose source is idle after ten seconds."""
    bolt = Sums()
    bolt.idle = timedelta(seconds=10)
    pump = pump_of(bolt, ends=1)
    fed(pump, (1, 5))
    pump.work_at("windows")
    [task] = pump.topology.task_ids("windows")
    return pump, task


def closes_after_ten_seconds(pump, task):
    assert pump.rows("end") == []
    later(pump, 9)
    pump.work(task)
    assert pump.rows("end") == []
    # Now no tuple has come for ten seconds, and time goes on by the clock.
    later(pump, 2)
    pump.work(task)
    assert len(pump.rows("end")) == 3


def test_time_in_which_the_inbox_could_not_be_polled_is_no_idle_time():
    pump, task = with_an_open_window()
    pump.attempts[task].kind.ends(0.0)
    later(pump, 60)
    pump.work(task)
    closes_after_ten_seconds(pump, task)


def test_no_time_passes_while_a_sender_can_send_nothing(caplog):
    """Its silence is not the end of its stream: a spout is full, or a bolt before is paused."""
    pump, task = with_an_open_window()
    pump.around.paused.add("spout")
    for _ in range(6):
        later(pump, 10)
        pump.work(task)
    assert caplog.text.count("lets no time pass in their windows, as spout can send nothing") == 1
    pump.around.paused.clear()
    closes_after_ten_seconds(pump, task)


class Hours(Full):
    window = tumbling(timedelta(hours=1))


@pytest.mark.parametrize(("kind", "stands"), [(Hours, False), (Counts, True)])
def test_windows_that_the_clock_closes_wait_for_no_sender(caplog, kind, stands):
    """Windows of tuples do, also in processing time: no clock closes them."""
    pump = pump_of(kind())
    fed(pump, (1, 0), (2, 0))
    pump.around.paused.add("spout")
    for _ in range(6):
        pump.work_at("windows")
        later(pump, 10)
    assert ("as spout can send nothing" in caplog.text) == stands


class Sessions(Sums):
    window = Session(timedelta(seconds=3))


def test_messages_of_an_open_session_that_come_again_in_a_new_run_are_in_it():
    """The last of them come first, from another spout."""
    pump = pump_of(Sessions(), standstill_s=10.0, ends=1)
    for number in (19, *range(19)):
        fed(pump, (number, 1_000 * number))
        later(pump, 0.1)
        pump.work_at("windows")
    assert pump.rows("end") == []
    later(pump, 10)
    fed(pump, (99, 60_000))
    pump.work_at("windows")
    assert list(pump.rows("end")[0]) == [list(range(20))]
    assert not pump.failed


class Lagging(Totals):
    lag = timedelta(seconds=100)


def held_by(pump, count):
    """Have the task hold this number of tuples, in a window that stays open."""
    later(pump, 1_000)
    for first in range(0, count, 5_000):
        rows = range(first, min(count, first + 5_000))
        pump.feed(*([n, f"k{n % 1_000}", 500_000 + n % 7] for n in rows))
        pump.send()
        pump.work(*pump.topology.task_ids("windows"))


def step_s(pump):
    """Return the CPU time of the median step that closes one window of one tuple."""
    [task] = pump.topology.task_ids("windows")
    times = []
    for n in range(21):
        pump.feed([1, "k1", 400_005 + 10 * n], [1, "k1", 500_010 + 10 * n])
        pump.send()
        later(pump, 0.1)
        began = time.thread_time()
        pump.work(task)
        times.append(time.thread_time() - began)
    # A step in which the machine stands still leaves its other tuple to the next one.
    pump.work(task)
    assert len(pump.rows("end")) >= 21
    return sorted(times)[10]


def test_a_step_takes_as_long_with_many_held_tuples_as_with_few():
    few = pump_of(Lagging(), ends=1)
    held_by(few, 2_000)
    many = pump_of(Lagging(), ends=1)
    held_by(many, 60_000)
    ratio = min(step_s(many) / step_s(few) for _ in range(3))
    assert many.attempts[many.topology.task_ids("windows")[0]].backlog.tuples > 60_000
    assert ratio < 2


def test_no_window_closes_before_all_held_tuples_are_back():
    pump = pump_of(Totals(), ends=1)
    later(pump, 1_000)
    # A step has noted that all of these are known.
    for _ in range(30):
        pump.feed(*([1, "k", 500_000] for _ in range(1_000)))
        pump.send()
        pump.work(*pump.topology.task_ids("windows"))
    pump.feed([5, "k", 500_010])
    pump.send()
    [task] = pump.topology.task_ids("windows")
    with killed_after(0):
        pump.work(task)
    pump.take_over(task)
    for _ in range(5):
        pump.work(task)
    assert pump.rows("end") == [(30_000, 30_000)]


class Sliding5(Totals):
    """Adds each tuple once, and cannot add 4."""

    window = Sliding(50 * MS, 10 * MS)

    def prepare(self, config, context):
        self.added = Counter()

    transient = frozenset({"added"})

    def create(self):
        return []

    def add(self, accumulator, tup):
        if tup["n"] == 4:
            raise Reject("4 cannot be added")
        self.added[tup["n"]] += 1
        assert self.added[tup["n"]] == 1
        return [*accumulator, tup["n"]]

    def merge(self, first, second):
        return first + second

    def result(self, accumulator, window, collector):
        collector.emit([sum(accumulator), window.count])


def test_windows_that_overlap_add_each_tuple_once():
    pump = pump_of(Sliding5(), ends=1)
    roots = fed(pump, *((n, 9 * n) for n in range(1, 13)))
    pump.work_at("windows")
    windows = [
        [n for n in range(1, 13) if n != 4 and end - 50 <= 9 * n < end]
        for end in range(10, 101, 10)
    ]
    assert pump.rows("end") == [(sum(one), len(one)) for one in windows]
    pump.run()
    assert set(pump.failed) == {roots[4]}
    assert set(pump.acked) == {roots[n] for n in (1, 2, 3, 5, 6)}


class Extends(Sliding5):
    """Returns the second accumulator if the first is empty, and changes the first otherwise."""

    def merge(self, first, second):
        if not first:
            return second
        first.extend(second)
        return first


def test_merge_may_return_its_second_argument():
    pump = pump_of(Extends(), ends=1)
    fed(pump, *((n, 9 * n) for n in range(5, 17)))
    pump.work_at("windows")
    ends = range(50, 141, 10)
    windows = [[n for n in range(5, 17) if end - 50 <= 9 * n < end] for end in ends]
    assert pump.rows("end") == [(sum(one), len(one)) for one in windows]


@pytest.mark.parametrize("window", [Session(10 * MS), tumbling(10 * MS), tumbling(1)])
def test_a_window_of_any_kind_is_tried_again_without_another_tuple(window):
    bolt = Sums()
    bolt.window = window
    bolt.raises = 1
    pump = pump_of(bolt, ends=1)
    roots = fed(pump, (1, 5), (2, 45))
    pump.work_at("windows")
    assert pump.rows("end") == []
    later(pump, 1)
    pump.run()
    assert pump.acked == [roots[1]]


def test_the_broker_is_asked_for_the_time_that_windows_hold_messages():
    short, long = Sums(), Sums()
    long.window = tumbling(timedelta(hours=2))
    assert topology(short).held < timedelta(minutes=7)
    assert timedelta(hours=4) < topology(long).held < timedelta(hours=7)


KINDS = {
    "tumbling": tumbling(10 * MS),
    "sliding": Sliding(30 * MS, 10 * MS),
    "session": Session(6 * MS, 40 * MS),
    "by threes": tumbling(3),
    "sliding tuples": Sliding(5, 2),
}


class Everything(Sums):
    """Emits all that a window has, and fails some tuples."""

    output_fields = ""
    output_streams = {  # noqa: RUF012 - it is the contract
        "default": "key string, numbers array<long>, new array<long>, expired array<long>",
        "late": "n long",
    }
    late_stream = "late"
    lag = 5 * MS

    def execute(self, window, collector):
        parts = (window.tuples, window.new, window.expired)
        collector.emit([window.key, *([tup["n"] for tup in part] for part in parts)])
        for tup in window:
            if tup["n"] % 11 == 0:
                collector.fail(tup, Reject("it is one of eleven"))


def worked(bolt, effects):
    """Return all that is emitted, acked and failed; processes die after these effects."""
    draw = Random(7)
    pump = pump_of(bolt, ends=1)
    tasks = pump.topology.task_ids("windows")
    numbers = {}
    for first in range(0, 60, 6):
        for n in range(first, first + 6):
            [root] = pump.feed([n, f"k{n % 2}", 4 * n - draw.randrange(14)])
            numbers[root] = n
        pump.send()
        if effects is None:
            pump.work(*tasks)
        else:
            with killed_after(effects):
                pump.work(*tasks)
            # The next process may die while it repeats the step.
            with killed_after(effects % 4):
                pump.take_over(*tasks)
                pump.work(*tasks)
            pump.take_over(*tasks)
            pump.work(*tasks)
        later(pump, 1.5)
    found = sorted(pump.rows("end")), sorted(pump.rows("late"))
    pump.run()
    return (
        *found,
        sorted(numbers[one] for one in pump.acked),
        {numbers[one] for one in pump.failed},
    )


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize(
    ("kind", "by_time"),
    [*((kind, True) for kind in KINDS), ("by threes", False), ("sliding tuples", False)],
)
def test_a_death_at_any_effect_changes_nothing_of_any_kind_of_windows(kind, by_time, expired):
    bolt = Everything()
    bolt.window = KINDS[kind]
    bolt.tells_expired = expired
    bolt.timestamp_field = "at" if by_time else ""
    expected = worked(bolt, None)
    assert expected[0]
    assert expected[2]
    for effects in range(9):
        assert worked(bolt, effects) == expected, effects


@pytest.mark.parametrize("window", [Session(10 * MS), Sliding(20 * MS, 10 * MS), tumbling(1)])
def test_a_task_sleeps_until_a_failed_window_is_due(window):
    bolt = Sums()
    bolt.window = window
    bolt.raises = 1_000
    pump = pump_of(bolt)
    later(pump, 100)
    fed(pump, (1, 5), (2, 45))
    pump.run()
    [task] = pump.topology.task_ids("windows")
    for _ in range(12):
        next_at = pump.attempts[task].next_at
        assert next_at > pump.clock()
        pump.clock.move_to(next_at)
        pump.run()


def test_a_task_without_a_ledger_sleeps_too():
    clock = SimulatedClock()
    pump = Pump(topology(Totals()), simulated=clock, ledger=False)
    pump.feed([1, "k", 5], tracked=False)
    pump.run()
    clock.move_to(2)
    pump.run()
    [task] = pump.topology.task_ids("windows")
    assert pump.attempts[task].next_at > 2


@pytest.mark.parametrize(
    ("column", "unit", "expected"),
    [
        (pa.array([1, None, 2**62, -(2**62)]), "ms", [(1_000, GOOD), (0, NULL), AHEAD, AHEAD]),
        (
            pa.array([1.5, None, float("nan"), float("inf")]),
            "s",
            [(1_500_000, GOOD), (0, NULL), (0, NULL), AHEAD],
        ),
        (
            pa.array([5, None, 61_000_001, 61_000_000], pa.timestamp("us", tz="UTC")),
            "s",
            [(5, GOOD), (0, NULL), (61_000_001, AHEAD), (61_000_000, GOOD)],
        ),
        (
            pa.array([1, 2, 3, 2**31 - 1], pa.int32()),
            "us",
            [(1, GOOD), (2, GOOD), (3, GOOD), AHEAD],
        ),
    ],
)
def test_timestamps_of_all_types_are_read(column, unit, expected):
    bolt = Sums()
    bolt.timestamp_unit = unit
    windowing = Windowing(bolt=bolt, keys={}, source_tasks=(1,))
    values = pa.record_batch({"at": column})
    chunk = SimpleNamespace(values=values)
    times, status = Timestamps(windowing).of(chunk, np.arange(4), 1_000_000)
    for time_us, found, one in zip(times.tolist(), status.tolist(), expected, strict=True):
        assert found == one if one is AHEAD else (time_us, found) == one
    some, _ = Timestamps(windowing).of(chunk, np.array([0, 3]), 1_000_000)
    assert some.tolist() == [times[0], times[3]]


def test_all_held_tuples_are_reported_before_they_time_out():
    pump = pump_of(Totals())
    held_by(pump, 20_000)
    pump.read()
    pump.reset.clear()
    told = set()
    feed = pump.feeds[0]
    for _ in range(60):
        later(pump, 0.5)
        pump.work(*pump.topology.task_ids("windows"))
        told.update(feed.read(timedelta(0)).waiting)
    assert len(told) == 20_000


class Thrice(BasicBolt):
    output_fields = FIELDS

    def execute(self, tup, collector):
        for n in range(3):
            collector.emit([10 * tup["n"] + n, tup["key"], tup["at"] + 6 * n])


@pytest.mark.parametrize("effects", [None, *range(8)])
def test_a_message_with_several_tuples_in_a_window_is_acked_when_all_is_done(effects):
    builder = TopologyBuilder("windows")
    builder.set_spout("spout", Source(FIELDS))
    builder.set_bolt("thrice", Thrice()).shuffle_grouping("spout")
    builder.set_bolt("windows", Sums()).fields_grouping("thrice", "key")
    builder.set_bolt("end", Keep()).shuffle_grouping("windows")
    pump = Pump(builder.build(), simulated=SimulatedClock())
    roots = pump.feed([1, "k", 5], [2, "k", 9], [3, "k", 60])
    tasks = [*pump.topology.task_ids("thrice"), *pump.topology.task_ids("windows")]
    pump.send()
    with killed_after(99 if effects is None else effects):
        pump.work(*tasks)
    pump.take_over(*tasks)
    pump.work(*tasks)
    [end] = pump.topology.task_ids("end")
    waiting = len(pump.rows("end"))
    # Windows end at 10, 20, 30, 40 and 70, each with two emissions if it has new tuples.
    assert waiting == 9
    acked = []
    while pump.attempts[end].turn():
        pump.read()
        acked.append(len(pump.acked))
    assert acked[-1] == 2
    assert set(pump.acked) == set(roots[:2])


def test_a_report_of_all_held_tuples_waits_for_the_one_before():
    """A task that is due and does nothing would keep a ``LocalCluster`` moving for ever."""
    pump = pump_of(Sums())
    fed(pump, (1, 5))
    pump.run()
    later(pump, 9.95)
    pump.run()
    later(pump, 0.05)
    pump.run()
    [task] = pump.topology.task_ids("windows")
    assert pump.attempts[task].next_at > pump.clock()

"""Windows: the cases of Storm's own tests with the values of Storm, and the guarantee of each
message.

A case ``test_storm_…`` has the name of Storm's test in ``WindowManagerTest``,
``WindowedBoltExecutorTest`` or ``WaterMarkEventGeneratorTest``. Storm's tests say when a watermark
comes; here it follows from the tuples and ``lag``.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from tests.semantics.components import outcome
from tiercel import (
    ConfigValueError,
    Session,
    Sliding,
    TopologyBuilder,
    WindowedBolt,
    tumbling,
)
from tiercel.testing import FeederSpout

LATE = "late"


@pytest.fixture
def in_memory(local_cluster):
    """``in_memory(topology)`` is a running cluster, in which the time of windows is simulated."""
    return partial(local_cluster, engine="memory")


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


class Tell(WindowedBolt):
    """Emits the numbers of each window, of its new tuples and of those that expired."""

    output_streams = {  # noqa: RUF012 - it is the contract
        "default": "tuples array<long>, new array<long>, expired array<long>",
        LATE: "n long, ts long",
    }
    tells_expired = True

    def __init__(self, window, *, by_event=True, lag_ms=0, idle_s=60, tells_expired=True):
        self.window = window
        self.tells_expired = tells_expired
        self.timestamp_field = "ts" if by_event else ""
        self.late_stream = LATE if by_event else ""
        self.lag = ms(lag_ms)
        self.idle = timedelta(seconds=idle_s)

    def execute(self, window, collector):
        parts = (window.tuples, window.new, window.expired)
        collector.emit([[tup["n"] for tup in part] for part in parts])


class Told:
    """A cluster with one windowed bolt, and the windows that it has told of since the last look."""

    def __init__(self, cluster_of, bolt, *sources):
        self.sources = [FeederSpout(fields="n long, ts long") for _ in sources or "s"]
        builder = TopologyBuilder("windows")
        declarer = builder.set_bolt("windows", bolt)
        for number, source in enumerate(self.sources):
            builder.set_spout(f"s{number}", source)
            declarer.shuffle_grouping(f"s{number}")
        self.cluster = cluster_of(builder.build())
        self._seen = 0

    def feed(self, *tuples, source=0):
        """Feed numbers, or pairs of a number and a timestamp, each its own message."""
        for one in tuples:
            number, ts = one if isinstance(one, tuple) else (one, 0)
            self.sources[source].feed([number, ts], number)
        self.cluster.run_until_idle()

    def windows(self):
        """Return the windows since the last look: tuples, new, expired."""
        found = self.cluster.read_tuples("windows")
        since, self._seen = found[self._seen :], len(found)
        return since

    def contents(self):
        return [tuples for tuples, _, _ in self.windows()]

    def late(self):
        return [number for number, _ in self.cluster.read_tuples("windows", LATE)]


def test_storm_count_based_window(in_memory):
    told = Told(in_memory, Tell(Sliding(5, 2), by_event=False))
    told.feed(1, 2)
    assert told.windows() == [[[1, 2], [1, 2], []]]
    told.feed(3, 4)
    assert told.windows() == [[[1, 2, 3, 4], [3, 4], []]]
    told.feed(5, 6)
    assert told.windows() == [[[2, 3, 4, 5, 6], [5, 6], [1]]]
    told.feed(7)
    assert told.windows() == []
    told.feed(8)
    assert told.windows() == [[[4, 5, 6, 7, 8], [7, 8], [2, 3]]]


def test_storm_tumbling_window(in_memory):
    told = Told(in_memory, Tell(tumbling(3), by_event=False))
    told.feed(1, 2)
    assert told.windows() == []
    told.feed(3)
    assert told.windows() == [[[1, 2, 3], [1, 2, 3], []]]
    told.feed(4, 5, 6)
    assert told.windows() == [[[4, 5, 6], [4, 5, 6], [1, 2, 3]]]


def test_storm_time_based_window(in_memory):
    """Storm's test sets the time at which a window ends; here windows end at multiples of the
    slide.
    """
    told = Told(in_memory, Tell(Sliding(ms(1_000), ms(100)), by_event=False))
    old, now, later = list(range(1, 51)), list(range(51, 101)), list(range(101, 201))
    told.feed(*old)
    told.cluster.advance_time(1)
    told.windows()
    told.feed(*now)
    told.cluster.advance_time(0.1)
    assert told.windows() == [[now, now, old]]
    told.feed(*later)
    told.cluster.advance_time(0.1)
    assert told.windows() == [[now + later, later, []]]


def test_storm_time_based_window_expiry(in_memory):
    told = Told(in_memory, Tell(tumbling(ms(100)), by_event=False))
    numbers = list(range(1, 11))
    told.feed(*numbers)
    told.cluster.advance_time(0.1)
    assert told.windows() == [[numbers, numbers, []]]
    told.cluster.advance_time(0.2)
    assert told.windows() == []
    assert outcome(told.cluster, "s0") == (numbers, [], 0)


def test_storm_event_time_based_window(in_memory):
    told = Told(in_memory, Tell(Sliding(ms(20), ms(10)), lag_ms=5))
    told.feed((1, 603), (2, 605), (3, 607))
    assert told.windows() == []
    told.feed((4, 618), (5, 626), (6, 636))
    assert told.windows() == [
        [[1, 2, 3], [1, 2, 3], []],
        [[1, 2, 3, 4], [4], []],
        [[4, 5], [5], [1, 2, 3]],
    ]
    told.feed((7, 825), (8, 826), (9, 827), (10, 839))
    assert told.windows() == [
        [[5, 6], [6], [4]],
        [[6], [], [5]],
        [[7, 8, 9], [7, 8, 9], []],
    ]


def test_storm_execute_with_ts(in_memory):
    told = Told(in_memory, Tell(Sliding(ms(20), ms(10)), lag_ms=5))
    told.feed(*enumerate((603, 605, 607, 618, 626, 636)))
    assert told.contents() == [[0, 1, 2], [0, 1, 2, 3], [3, 4]]


def test_storm_event_time_lag(in_memory):
    told = Told(in_memory, Tell(Sliding(ms(20), ms(10)), lag_ms=5))
    told.feed(*enumerate((603, 605, 607, 618, 626, 632, 629, 636), start=1))
    assert told.contents() == [[1, 2, 3], [1, 2, 3, 4], [4, 5, 7]]


def test_storm_scan_stop(in_memory):
    told = Told(in_memory, Tell(Sliding(ms(20), ms(10)), lag_ms=5))
    told.feed(*enumerate((603, 605, 607, 618, 626, 629, 636, 637, 638, 639), start=1))
    assert told.contents() == [[1, 2, 3], [1, 2, 3, 4], [4, 5, 6]]


SAME_TS = tuple(enumerate((10, 10, 11, 12, 12, 12, 12, 13, 14, 15), start=1))


def test_storm_count_based_tumbling_with_same_event_ts(in_memory):
    told = Told(in_memory, Tell(tumbling(2), idle_s=1))
    told.feed(*SAME_TS)
    told.cluster.advance_time(5)
    assert told.contents() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_storm_count_based_sliding_with_same_event_ts(in_memory):
    told = Told(in_memory, Tell(Sliding(5, 2), idle_s=1))
    told.feed(*SAME_TS)
    told.cluster.advance_time(5)
    assert told.contents() == [
        [1, 2],
        [1, 2, 3, 4],
        [2, 3, 4, 5, 6],
        [4, 5, 6, 7, 8],
        [6, 7, 8, 9, 10],
    ]


def test_storm_windows_of_tuples_per_duration_are_refused():
    """Storm's ``testCountBasedWindowWithEventTs`` and ``testCountBasedTriggerWithEventTs``."""
    for length, slide in ((3, ms(10)), (ms(20), 3)):
        with pytest.raises(ConfigValueError, match="both as durations, or both as numbers"):
            Sliding(length, slide)


def test_storm_track_two_streams(in_memory):
    """The watermark is that of the slower source."""
    told = Told(in_memory, Tell(tumbling(ms(10)), lag_ms=5), "fast", "slow")
    told.feed((1, 100), (2, 110), (3, 118), source=0)
    told.feed((4, 95), (5, 98), source=1)
    assert told.windows() == []
    told.feed((6, 106), source=1)
    assert told.contents() == [[4, 5]]
    told.feed((7, 115), source=1)
    assert told.contents() == [[1, 6]]


def test_storm_late_event(in_memory):
    """In Storm 104 is late, because it is below the watermark of 105; here its window is open."""
    told = Told(in_memory, Tell(tumbling(ms(10)), lag_ms=5))
    told.feed((1, 100), (2, 110))
    told.feed((3, 105), (4, 106), (5, 104), (6, 114))
    assert (told.windows(), told.late()) == ([], [])
    told.feed((7, 115))
    assert told.contents() == [[1, 5, 3, 4]]
    told.feed((8, 109))
    assert (told.windows(), told.late()) == ([], [8])


def test_storm_execute_with_late_tuple_stream(in_memory):
    told = Told(in_memory, Tell(Sliding(ms(20), ms(10)), lag_ms=5))
    for number, ts in enumerate((603, 605, 607, 618, 626, 636, 600)):
        told.feed((number, ts))
    assert told.contents() == [[0, 1, 2], [0, 1, 2, 3], [3, 4]]
    assert told.late() == [6]
    assert 6 in told.cluster.acked("s0")


def test_storm_execute_without_ts(in_memory):
    told = Told(in_memory, Tell(Sliding(ms(20), ms(10))))
    told.feed((1, None))
    assert told.cluster.rejected("s0") == [1]


def test_a_message_is_acked_when_its_last_window_has_closed_and_not_before(in_memory):
    told = Told(in_memory, Tell(Sliding(ms(20), ms(10)), tells_expired=False))
    told.feed((1, 605), (2, 615))
    told.feed((3, 619))
    assert told.contents() == [[1]]
    assert told.cluster.acked("s0") == []
    told.feed((4, 620))
    assert told.contents() == [[1, 2, 3]]
    assert told.cluster.acked("s0") == [1]
    told.feed((5, 630))
    assert sorted(told.cluster.acked("s0")) == [1, 2, 3]


def test_a_window_contains_its_start_and_not_its_end(in_memory):
    """In Storm, 610 is in the window that ends at 610."""
    told = Told(in_memory, Tell(tumbling(ms(10))))
    told.feed((1, 600), (2, 609), (3, 610), (4, 620))
    assert told.contents() == [[1, 2], [3]]


def test_a_session_ends_when_no_tuple_has_come_for_the_gap(in_memory):
    told = Told(in_memory, Tell(Session(ms(10)), lag_ms=10))
    told.feed((1, 600), (2, 609), (4, 625), (3, 616), (5, 635), (6, 655))
    assert told.contents() == [[1, 2, 3, 4], [5]]


def test_a_held_tuple_does_not_time_out(in_memory):
    tell = Tell(tumbling(timedelta(minutes=5)), by_event=False, tells_expired=False)
    told = Told(in_memory, tell)
    told.feed(1)
    told.cluster.advance_time(290)
    assert outcome(told.cluster, "s0") == ([], [], 1)
    told.cluster.advance_time(10)
    assert told.contents() == [[1]]
    assert outcome(told.cluster, "s0") == ([1], [], 0)

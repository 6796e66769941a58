"""The watchdog ends a process in which a call of the user's code takes too long, and no other
process.
"""

import io
import subprocess
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tests.support.waiting import wait_until
from tiercel import RedisUnavailableError
from tiercel.acker.inbox.contract import stale
from tiercel.spark_jobs.bolts.tuples import Origin, Tuple
from tiercel.spark_jobs.suspects import watchdog
from tiercel.spark_jobs.suspects.watchdog import CallLimit, Doing, Putting, Watchdog

LIMIT = timedelta(milliseconds=100)


class Looks:
    """A clock that advances per look by the watchdog's intended pause, even on a busy machine."""

    now = 0.0
    pause_s = 0.0

    def monotonic(self):
        self.now += self.pause_s
        return self.now


CLOCK = Looks()


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(CLOCK, "now", 0.0)
    monkeypatch.setattr(watchdog, "time", CLOCK)


class Idle:
    limit = None

    def doing(self):
        return None


def tup():
    return Tuple(["a"], Origin("spout", "default", 1, pa.schema([]), seeds=[7]), 0)


class Process:
    """One task, and an idle neighbour."""

    def __init__(self, limit=None, usual=LIMIT):
        self.limit = limit
        self.renewed = []
        self.codes = []
        self.told = []
        self.looks = 0
        self.parted = []
        self.lasting = []
        self.put_off = []
        self.cancelled = []
        putting = Putting(self.put_off.append, lambda: self.cancelled.append(True))
        self.watchdog = Watchdog(
            usual, [Idle(), self], self.parted.append, self.codes.append, putting
        )
        CLOCK.pause_s = self.watchdog._pause_s

    def over(self, does):
        """Run the watchdog; ``does`` gets the number of the look."""
        self.does = does
        return self.watchdog.looking()

    def doing(self):
        self.looks += 1
        return self.does(self.looks)

    def lasts(self, doing):
        self.lasting.append(doing)

    def renew(self, doing):
        self.renewed.append(doing)

    def hung(self, doing, limit_s):
        self.told.append((doing, limit_s))

    def is_looked_at(self, times):
        return wait_until(lambda: self.looks > times, 10)


def test_a_call_that_never_ends_is_told_of_and_then_the_process_ends(caplog):
    process = Process()
    work = SimpleNamespace(task=3, waits=False, record=SimpleNamespace(component="fetch"))
    same = Doing(3, tup(), work=work)
    with process.over(lambda _: same):
        wait_until(lambda: process.codes, 10)
    assert process.told == [(same, LIMIT.total_seconds())]
    assert "fetch[3] has been stuck in one call" in caplog.text
    assert process.lasting == [same], "at half of the limit, once"
    assert process.codes == [70]
    assert process.parted == [3], "its neighbours were not given the time to finish"


def test_the_process_ends_even_if_redis_is_away_and_the_neighbours_do_not_finish():
    class Lonely(Process):
        def hung(self, doing, limit_s):
            raise RedisUnavailableError

    process = Lonely()
    same = Doing(3, None)
    process.watchdog._part = lambda task: 1 / 0
    with process.over(lambda _: same):
        wait_until(lambda: process.codes, 10)


def test_a_call_that_may_last_keeps_what_waits_for_it_alive_until_its_own_limit():
    process = Process(CallLimit(ends_s=0.5, renew_s=0.1))
    same = Doing(3, tup())
    with process.over(lambda _: same):
        wait_until(lambda: process.codes, 10)
    assert CLOCK.now > 0.5, "the usual limit was over before"
    assert 2 <= len(process.renewed) <= 5
    assert process.renewed[0] is same
    assert process.told == [(same, 0.5)]
    assert process.lasting == []


@pytest.mark.parametrize(
    ("error", "is_told"), [(RedisUnavailableError("away"), True), (stale(3), False)]
)
def test_a_call_of_an_attempt_that_is_over_is_no_warning(caplog, error, is_told):
    class Ended(Process):
        def renew(self, doing):
            super().renew(doing)
            raise error

    process = Ended(CallLimit(ends_s=0.5, renew_s=0.1))
    same = Doing(3, tup())
    with process.over(lambda _: same):
        wait_until(lambda: process.codes, 10)
    assert process.renewed
    assert ("could not report a long call" in caplog.text) == is_told


def test_calls_that_are_short_cost_nothing():
    process = Process(CallLimit(ends_s=2.0, renew_s=0.1))
    with process.over(lambda _: Doing(3, tup())):
        process.is_looked_at(10)
    assert process.renewed == []


def test_what_waits_behind_a_row_of_calls_does_not_time_out_though_each_is_shorter():
    process = Process(CallLimit(ends_s=60.0, renew_s=1.5))
    calls = [Doing(3, tup()) for _ in range(100)]
    with process.over(lambda _: calls[int(CLOCK.now / 1.2)]):
        wait_until(lambda: len(process.renewed) >= 2, 60)
    first, second = process.renewed[:2]
    assert first is not second


def test_a_limit_that_is_shorter_than_the_usual_one_counts():
    process = Process(CallLimit(ends_s=0.05))
    same = Doing(3, tup())
    with process.over(lambda _: same):
        wait_until(lambda: process.codes, 10)
    assert process.told == [(same, 0.05)]
    assert process.lasting == [same]


def test_native_code_may_last_as_long_as_the_longest_limit():
    process = Process(CallLimit(ends_s=3600.0, renew_s=10.0))
    with process.over(lambda _: None):
        assert process.put_off[0] == 7200.0


def test_a_task_with_a_limit_is_looked_at_where_no_message_times_out():
    process = Process(CallLimit(ends_s=0.05))
    process.watchdog = Watchdog(
        None,
        [Idle(), process],
        process.parted.append,
        process.codes.append,
        Putting(process.put_off.append, lambda: None),
    )
    same = Doing(3, tup())
    with process.over(lambda _: same):
        wait_until(lambda: process.codes, 10)


def test_other_tuples_other_steps_and_resets_are_signs_of_life():
    one = tup()
    for alive in (
        lambda look: Doing(3, tup()),
        lambda look: Doing(3, None, 0, object()),
        lambda look: Doing(3, one, look),
        lambda look: Doing(3, one) if look % 5 else None,
    ):
        process = Process()
        with process.over(alive):
            process.is_looked_at(15)
        assert process.codes == []


@pytest.mark.parametrize("item", [None, tup()])
def test_what_waits_behind_a_call_that_resets_timeouts_does_not_time_out(item):
    process = Process()
    with process.over(lambda look: Doing(3, item, look // 3)):
        wait_until(lambda: len(process.renewed) >= 3, 10)
    assert len(process.renewed) <= 3 * CLOCK.now / LIMIT.total_seconds()
    assert process.codes == []


def test_as_long_as_it_can_look_it_puts_the_end_off_and_the_process_outlives_the_run():
    process = Process()
    with process.over(lambda look: None):
        assert process.put_off
        seen = len(process.put_off)
        wait_until(lambda: len(process.put_off) > seen + 3, 10)
        assert not process.cancelled
    assert process.cancelled == [True]
    assert set(process.put_off) == {2 * LIMIT.total_seconds()}


def test_without_a_message_timeout_nothing_is_looked_at():
    with Watchdog(None, [Idle()], putting=Putting(lambda _: 1 / 0, lambda: None)).looking():
        assert "watchdog" not in {thread.name for thread in threading.enumerate()}


BLOCKED = """
import ctypes, datetime
from tiercel.spark_jobs.suspects.watchdog import Doing, Putting, Watchdog

class Work:
    limit = None

    def doing(self):
        return Doing(3, None)

with Watchdog(datetime.timedelta(seconds=0.5), [Work()]).looking():
    while True:
        ctypes.PyDLL(None).sleep(60)  # holds the interpreter's lock
"""


def test_native_code_that_blocks_every_thread_of_python_is_ended_with_a_traceback():
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert "Timeout (" in ended.stderr


@pytest.mark.parametrize("elsewhere", [io.StringIO(), None])
def test_a_bolt_may_send_stderr_elsewhere_without_ending_its_process(monkeypatch, elsewhere):
    process = Process()
    process.watchdog = Watchdog(timedelta(minutes=10), [Idle(), process])
    with process.over(lambda _: None):
        monkeypatch.setattr(sys, "stderr", elsewhere)
        process.is_looked_at(3)

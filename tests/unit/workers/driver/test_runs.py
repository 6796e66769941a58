"""The driver's loop with a stand-in for Spark: reserve, take-over, loss, pauses, and its end."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.inboxes import parcel, put
from tests.support.orders import MemoryControl
from tests.support.presences import MemoryPresences
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, RedisUnavailableError, TopologyBuilder
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.memory import MemoryLedger
from tiercel.spark_jobs.errors import SparkEndedError, StateLayoutError
from tiercel.spark_jobs.spark.executors import Executor, Readiness
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.topology.graph import shape_of
from tiercel.workers.control import presence
from tiercel.workers.control.contract import NO_REBALANCE, State
from tiercel.workers.control.presence import DRIVER, Holder, Lease
from tiercel.workers.driver import run_watch, runs
from tiercel.workers.driver.process import enter
from tiercel.workers.driver.run_watch import RunContext
from tiercel.workers.driver.runs import Runs
from tiercel.workers.errors import RunsFailedError
from tiercel.workers.lifecycle import Heartbeat

SPEC = LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=timedelta(seconds=30))
BOLT = 2


def topology():
    builder = TopologyBuilder("t")
    builder.set_spout("source", Source())
    builder.set_bolt("bolt", BasicBolt()).shuffle_grouping("source")
    return builder.build()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Everything is a tenth of what it is, but what a machine that stands still would end."""
    monkeypatch.setattr(presence, "DRIVER", replace(DRIVER, lasts=timedelta(seconds=1.5)))
    monkeypatch.setattr(presence, "_RENEW_S", 0.1)
    for name in ("_LOOK_S", "_FIGURES_S"):
        monkeypatch.setattr(run_watch, name, 0.02)
    monkeypatch.setattr(runs, "_RESERVE_S", 0.02)
    monkeypatch.setattr(runs, "_GRACE_S", 1.0)
    monkeypatch.setattr(run_watch, "_DRAIN_S", 0.5)
    monkeypatch.setattr(run_watch, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(run_watch, "_LONGEST_UNFIT_PAUSE_S", 0.1)


class Job:
    """Stands for the Spark job of a run: its bolt tasks say that they live, until another run
    has their inboxes.
    """

    def __init__(self, world, run, fault=None):
        self.world = world
        self.run = run
        self.fault = fault
        self.cancelled = False
        # Number of its tasks that Spark has no slot for.
        self.waiting = 0
        self.unfit = ""
        # The extra tasks of executors that joined.
        self.further = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        if self.fault is not None:
            return
        while not self._end.wait(0.01):
            if self.world.attends and self.world.inboxes.beat(self.run.id, {BOLT: 1}, {}, "").stale:
                return

    @property
    def active(self):
        return self._thread.is_alive()

    def wait(self, seconds):
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def cancel(self):
        self.cancelled = True
        self._end.set()

    def fail(self, fault):
        self.fault = fault
        self._end.set()


class Away:
    """Another object, or nothing but RedisUnavailableError while ``away``."""

    def __init__(self, inner):
        self.inner = inner
        self.away = False
        # The calls made while it was away.
        self.asked = []

    def __getattr__(self, name):
        if self.away:
            self.asked.append(name)
            raise RedisUnavailableError("Redis is away")
        return getattr(self.inner, name)


class World:
    """Everything that two drivers share."""

    slots = 2
    free = 0
    # Executors may join.
    grows = False

    def __init__(self):
        self.presences, self.control = MemoryPresences(), MemoryControl()
        self.lease = Lease(self.presences)
        self.inboxes, self.ledger = MemoryInboxes(), MemoryLedger(SPEC)
        self.jobs = []
        self.entered = []
        self.released = []
        self.attends = True
        self.faults = []
        # Why no executor is fit, at each of the next times that the driver asks.
        self.troubles = []
        self.is_over = False
        self.asked = []
        self.on_enter = lambda run: None

    def check_alive(self):
        if self.is_over:
            raise SparkEndedError("Spark's JVM has ended")

    def ready(self, wanted):
        self.asked.append(wanted)
        trouble = self.troubles.pop(0) if self.troubles else ""
        return Readiness(slots=0 if trouble else self.slots, trouble=trouble)

    def start(self, run):
        self.jobs.append(Job(self, run, self.faults.pop() if self.faults else None))
        return self.jobs[-1]

    def silenced(self):
        return nullcontext()

    @property
    def run(self):
        """The run that spout workers send to."""
        holder = self.lease.holder()
        return holder.run if holder else None

    def enter(self, run):
        self.on_enter(run)
        self.entered.append(run.id)
        self.released.append(
            enter(run.id, run.topology, self.inboxes, self.ledger, MemoryCaseBook())
        )
        return self.released[-1]

    def make(self, number, slots, topology):
        return Run(
            id=str(number), topology=topology, hosts=((BOLT,),), ledger=SPEC, run_number=number
        )

    def context(self, **parts):
        shared = {
            "lease": self.lease,
            "control": self.control,
            "inboxes": self.inboxes,
            "enter": self.enter,
        }
        return RunContext(topology=topology(), **{"make": self.make, **shared, **parts})


@pytest.fixture
def world():
    return World()


class Driver:
    """A driver on a thread of its own, as ``Driver.run`` goes about it."""

    def __init__(self, world, **parts):
        self.runs = Runs(world.context(**parts))
        self.error = None
        self._world = world
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            if self.runs.wait_for_turn():
                self.runs.begin(1)
                self.runs.go(self._world)
        except Exception as error:  # noqa: BLE001 - what ends it is looked at
            self.error = error
        finally:
            self.runs.close()

    @property
    def ended(self):
        return not self.thread.is_alive()


@pytest.fixture
def drive(world):
    with ExitStack() as exits:

        @contextmanager
        def ending(driver):
            try:
                yield
            finally:
                driver.runs.stop()
                driver.thread.join(10)
                assert driver.ended

        def started(**parts):
            driver = Driver(world, **parts)
            exits.enter_context(ending(driver))
            driver.thread.start()
            return driver

        yield started


def running(world, after=None):
    """Wait for a run that spout workers send to, another one than ``after``."""
    return wait_until(lambda: world.run not in (None, "", after) and world.run, 10, "a run")


def begun(world):
    """Wait for a run whose bolt task has a process."""
    run = running(world)
    wait_until(lambda: seen_s(world) is not None, 5, "the task")
    return run


def seen_s(world):
    return world.inboxes.figures([BOLT])[BOLT].seen_s


def lose_executor(world, silent_s):
    """Have Spark wait for another executor; return when the bolt task has been silent this long."""
    world.jobs[0].waiting = 1
    world.attends = False
    wait_until(lambda: seen_s(world) > silent_s, 20, "it to be gone")


def sends(world, run):
    return put(world.inboxes, time.monotonic_ns(), parcel(b"x", target=BOLT), run=run) == [
        Appended.DONE
    ]


def test_spout_workers_hear_of_a_run_when_its_inboxes_take_what_they_send(world, drive):
    drive()
    run = running(world)
    assert world.lease.holder().shape == shape_of(topology())
    assert sends(world, run)
    assert [job.run.id for job in world.jobs] == [run]


@pytest.mark.parametrize(("least", "slots"), [(0, 8), (1, 2), (3, 6), (9, 8)])
def test_a_run_begins_on_the_executors_that_always_stay(world, drive, least, slots):
    world.slots = 8
    world.executors = lambda: [Executor(id=id_, slots=2) for id_ in "1234"]
    begun = []

    def make(number, slots, topology):
        begun.append(slots)
        return world.make(number, slots, topology)

    drive(least=least, make=make)
    running(world)
    assert begun[-1] == slots


def with_a_reserve(world, drive, caplog):
    """The first driver, its run, and a second driver that waits."""
    caplog.set_level("INFO")
    first = drive()
    run = running(world)
    drive()
    wait_until(lambda: "standing by" in caplog.text, 5, "the second driver to wait")
    return first, run


def test_the_second_driver_waits_in_reserve_and_takes_over_when_the_first_ends(
    world, drive, caplog
):
    first, run = with_a_reserve(world, drive, caplog)
    time.sleep(0.2)
    assert (world.run, len(world.jobs)) == (run, 1)
    first.runs.stop()
    second = running(world, after=run)
    assert int(second) > int(run)
    assert not world.jobs[0].active
    assert sends(world, second)


def test_a_driver_is_healthy_in_reserve_and_without_redis_but_not_before_spark_has_started(
    world, drive, tmp_path
):
    """Docker ends the start period, in which no check counts, at the first one that passes."""
    beat = tmp_path / "beat"
    first = Runs(world.context(heartbeat=Heartbeat(beat)))
    assert first.wait_for_turn()
    assert first.begin(1) is not None
    assert not beat.exists(), "Spark starts next, which may take a minute"
    drive(heartbeat=Heartbeat(beat))
    wait_until(beat.exists, 10, "a heartbeat of the driver in reserve")
    first.close()

    away = Away(world.lease)
    away.away = True
    drive(heartbeat=Heartbeat(without := tmp_path / "without"), lease=away)
    wait_until(without.exists, 10, "a heartbeat while Redis is away")


def test_the_second_driver_takes_over_from_one_that_is_dead_when_its_lease_has_lapsed(world, drive):
    world.lease.take(Holder(driver="dead", run="17"))
    began = time.monotonic()
    drive()
    running(world, after="17")
    assert 1.4 < time.monotonic() - began < 10


def test_a_driver_that_was_away_for_too_long_gives_way_and_then_waits_in_reserve(
    world, drive, caplog
):
    caplog.set_level("INFO")
    away = Away(world.lease)
    first = drive(lease=away)
    run = running(world)
    away.away = True
    drive()
    second = running(world, after=run)
    away.away = False
    wait_until(
        lambda: "another driver has taken over t" in caplog.text, 5, "the first driver to notice"
    )
    wait_until(lambda: caplog.text.count("standing by") == 2, 5, "the first driver to wait")
    time.sleep(0.3)
    assert world.run == second, "they do not take turns"
    assert sends(world, second), "the end of the older run took nothing from the later one"
    assert [job.active for job in world.jobs] == [False, True]
    assert not first.ended


def test_what_an_older_driver_still_does_is_refused(world, drive, caplog):
    """It sleeps between drawing its run and entering it."""
    asleep = threading.Event()
    woken = threading.Event()

    def sleep(run):
        asleep.set()
        woken.wait(10)
        return world.enter(run)

    away = Away(world.lease)
    drive(lease=away, enter=sleep)
    assert asleep.wait(10)
    away.away = True
    drive()
    run = running(world)
    woken.set()
    wait_until(lambda: "is over: a later one has" in caplog.text, 5, "the older run to be refused")
    assert world.run == run
    assert sends(world, run)
    away.away = False


def test_while_redis_is_away_from_all_the_run_goes_on(world, drive):
    away = Away(world.lease)
    drive(
        lease=away,
        inboxes=(inboxes := Away(world.inboxes)),
        control=(control := Away(world.control)),
    )
    run = running(world)
    for each in (away, inboxes, control):
        each.away = True
    time.sleep(1.7)
    assert world.run is None, "the lease has lapsed, and spout workers hold still"
    for each in (away, inboxes, control):
        each.away = False
    wait_until(lambda: world.run == run, 5, "the run to be there again")
    assert len(world.jobs) == 1


def test_a_silent_redis_is_told_after_the_first_call_that_waited_for_it(world, drive, caplog):
    caplog.set_level("INFO", "tiercel.queues.outage")
    drive(control=(control := Away(world.control)), inboxes=(inboxes := Away(world.inboxes)))
    running(world)
    control.away = inboxes.away = True
    wait_until(lambda: "waits for Redis" in caplog.text, 5, "the outage to be told")
    assert "figures" not in inboxes.asked, "a second call would wait as long as the first"
    control.away = inboxes.away = False
    wait_until(lambda: "works again" in caplog.text, 5, "its end to be told")


def test_a_redis_that_restarts_empty_has_a_new_run(world, drive, caplog):
    drive()
    run = running(world)
    world.inboxes._boxes.clear()
    world.presences.lose()
    second = running(world, after=run)
    assert sends(world, second)


def test_a_run_whose_job_fails_is_followed_by_another(world, drive, caplog):
    drive()
    run = running(world)
    world.jobs[0].fail("Job aborted")
    running(world, after=run)
    assert "the run ended: Job aborted" in caplog.text


def test_between_two_runs_spout_workers_hold_still(world, drive, monkeypatch):
    monkeypatch.setattr(run_watch, "_LONGEST_PAUSE_S", 0.5)
    drive()
    run = running(world)
    world.jobs[0].fail("Job aborted")
    wait_until(lambda: world.run == "", 5, "no run")
    assert not sends(world, run)


def test_a_run_is_starting_until_each_bolt_task_has_a_process(world, drive):
    world.attends = False
    drive()
    run = running(world)
    time.sleep(0.2)  # ten looks
    assert world.lease.holder().starting
    world.attends = True
    wait_until(lambda: not world.lease.holder().starting, 5, "the run to have started")
    assert world.run == run


def test_bolt_tasks_that_nothing_attends_end_the_run(world, drive, caplog, monkeypatch):
    monkeypatch.setattr(run_watch, "UNATTENDED_S", 0.2)
    drive()
    run = begun(world)
    world.attends = False
    wait_until(lambda: len(world.jobs) == 2, 10, "another run")
    world.attends = True
    running(world, after=run)
    assert "no process runs the bolt tasks 2" in caplog.text
    assert world.jobs[0].cancelled


def test_bolt_tasks_that_wait_for_a_new_executor_end_the_run_later(world, drive, monkeypatch):
    monkeypatch.setattr(run_watch, "_LATE_S", 0.1)
    monkeypatch.setattr(run_watch, "UNATTENDED_S", 0.2)
    monkeypatch.setattr(run_watch, "_REPLACED_S", 3_600.0)
    drive()
    run = begun(world)
    lose_executor(world, silent_s=5)
    assert world.run == run
    # Spark has started it, and nothing is heard of it.
    world.jobs[0].waiting = 0
    wait_until(lambda: len(world.jobs) == 2, 10, "another run")
    world.attends = True
    running(world, after=run)


def test_bolt_tasks_whose_executor_has_come_have_time_to_start(world, drive, monkeypatch):
    # A machine that stands still for two seconds changes nothing.
    monkeypatch.setattr(run_watch, "UNATTENDED_S", 3.0)
    monkeypatch.setattr(run_watch, "_LATE_S", 0.3)
    drive()
    run = begun(world)
    lose_executor(world, silent_s=3.5)
    assert world.lease.holder().starting, "no message times out"
    world.jobs[0].waiting = 0
    time.sleep(0.5)  # twenty looks: Python starts on the new executor
    assert world.lease.holder().starting
    world.attends = True
    wait_until(lambda: not world.lease.holder().starting, 5, "the task to be back")
    world.attends = False
    time.sleep(0.6)  # Spark has it at work: it is late, but not replaced
    assert not world.lease.holder().starting
    assert (world.run, len(world.jobs)) == (run, 1)


def test_bolt_tasks_that_crash_again_and_again_keep_no_message_from_timing_out(
    world, drive, monkeypatch
):
    class NowAndThen:
        waits = False

        def __bool__(self):
            self.waits = not self.waits
            return self.waits

    monkeypatch.setattr(run_watch, "UNATTENDED_S", 3_600.0)
    monkeypatch.setattr(run_watch, "_LATE_S", 0.1)
    drive()
    run = begun(world)
    wait_until(lambda: not world.lease.holder().starting, 5, "the run to have started")
    said = []
    monkeypatch.setattr(presence.Keeper, "replaces", lambda _: said.append(1))
    world.jobs[0].waiting = NowAndThen()
    world.attends = False
    wait_until(lambda: seen_s(world) > 1.0, 20, "it to be late")
    assert said == []
    assert world.run == run


def test_a_jump_of_redis_clock_ends_no_run(world, drive, monkeypatch):
    """Until its next word, a second later, each process then seems to be gone for an hour."""
    looks = []
    figures = world.inboxes.figures

    def an_hour_late_at_first(tasks):
        found = figures(tasks)
        looks.append(found[BOLT].seen_s)
        jumped = looks[-1] is not None and sum(seen is not None for seen in looks) <= 2
        return {task: replace(one, seen_s=3600.0) if jumped else one for task, one in found.items()}

    monkeypatch.setattr(world.inboxes, "figures", an_hour_late_at_first)
    drive()
    run = running(world)
    wait_until(lambda: sum(seen is not None for seen in looks) > 10, 5, "some looks")
    assert running(world) == run
    assert len(world.jobs) == 1


def test_a_run_that_fails_again_and_again_pauses_longer_and_then_ends_the_driver(
    world, drive, caplog
):
    world.faults = ["PicklingError: no"] * 100
    driver = drive()
    wait_until(lambda: driver.ended, 20, "the driver to end")
    assert isinstance(driver.error, RunsFailedError)
    assert str(driver.error).startswith(
        "8 runs of t in a row failed, the last with: PicklingError: no"
    )
    assert "\n" not in str(driver.error)
    assert len(world.jobs) == 8
    assert world.lease.holder() is None, "spout workers hold still"


TROUBLE = "executor 1 on h cannot start Python '/no': No such file or directory"


def test_while_no_executor_can_run_bolts_no_run_begins_and_monitors_are_told_why(
    world, drive, caplog
):
    world.troubles = [TROUBLE] * 3
    told = []
    world.ready = lambda wanted, ask=world.ready: (
        told.append(world.lease.holder().trouble) or ask(wanted)
    )
    drive()
    running(world)
    assert len(world.jobs) == 1
    assert told == ["", TROUBLE, TROUBLE, TROUBLE]
    assert world.lease.holder().trouble == ""
    said = [each.getMessage() for each in caplog.records if each.event == "no_executor_fit"]
    assert len(said) == 3
    assert all(TROUBLE in each for each in said)


ABSENT = "Spark has no executor"


def test_without_an_executor_no_run_begins_and_monitors_are_told_until_one_comes(
    world, drive, caplog, monkeypatch
):
    monkeypatch.setattr(runs, "_ABSENT_S", 0.2)
    ready, told = world.ready, []

    def absent(_wanted):
        told.append(world.lease.holder().trouble)
        time.sleep(0.01)
        return Readiness(slots=0, absent=True, trouble=ABSENT)

    world.ready = absent
    drive()
    wait_until(lambda: ABSENT in told, 10, "monitors to be told")
    assert told[:5] == [""] * 5, "executors have some time to come"
    assert not world.jobs
    world.ready = ready
    running(world)
    assert len(world.jobs) == 1
    assert not world.lease.holder().trouble
    [said] = [each.getMessage() for each in caplog.records if each.event == "no_executor_fit"]
    assert said == f"no executor can run bolts: {ABSENT}; messages wait until one comes"


def test_a_run_whose_tasks_get_no_python_ends_at_once_and_gives_back_without_blame(world, drive):
    drive()
    run = running(world)
    assert sends(world, run)
    world.jobs[-1].unfit = TROUBLE
    second = running(world, after=run)
    assert not world.jobs[0].active
    assert sends(world, second)


def test_executors_that_fail_run_after_run_are_tried_for_ever_and_no_driver_ends(world, drive):
    start = world.start

    def unfit(run):
        job = start(run)
        job.unfit = TROUBLE if len(world.jobs) < 12 else ""
        return job

    world.start = unfit
    drive()
    wait_until(lambda: len(world.jobs) == 12, 30, "the twelfth run")
    running(world)


def test_a_spark_that_has_ended_ends_the_driver_and_messages_are_given_back(world, drive):
    driver = drive()
    run = running(world)
    assert sends(world, run)
    world.is_over = True
    world.jobs[-1].fail("ConnectionRefusedError")
    wait_until(lambda: driver.ended, 5, "the driver to end")
    assert isinstance(driver.error, SparkEndedError)
    assert world.entered[-1] == f"{run}-ended"
    assert world.lease.holder() is None


def test_a_driver_can_be_stopped_while_it_waits_for_an_executor(world, drive, monkeypatch):
    monkeypatch.setattr(run_watch, "_LONGEST_UNFIT_PAUSE_S", 60)
    world.troubles = [TROUBLE] * 100
    driver = drive()
    wait_until(lambda: world.asked, 5, "the driver to ask")
    driver.runs.stop()
    wait_until(lambda: driver.ended, 5, "the driver to end")
    assert world.jobs == []


def test_what_an_operator_must_mend_ends_the_driver_at_once(world, drive):
    def refuse(run):
        raise StateLayoutError(
            "the state of 'count' was written with ackers=1, now it is 2: set ackers=1 again"
        )

    world.on_enter = refuse
    driver = drive()
    wait_until(lambda: driver.ended, 5, "the driver to end")
    assert isinstance(driver.error, StateLayoutError)
    assert world.jobs == []
    assert world.lease.holder() is None


def test_a_topology_that_is_rebalanced_has_a_new_run_on_what_spark_has_then(world, drive, caplog):
    caplog.set_level("INFO")
    slots = []
    make = world.make

    def noting(number, wanted, topology):
        slots.append(wanted)
        return make(number, wanted, topology)

    world.make = noting
    world.control.rebalance({})
    drive()
    run = running(world)
    time.sleep(0.2)
    assert len(world.jobs) == 1, "an order from before is none"
    world.slots = 5
    world.control.rebalance({})
    second = running(world, after=run)
    assert sends(world, second)
    assert slots == [1, 2, 5]
    world.control.lose()
    time.sleep(0.2)
    assert world.run == second, "an emptied Redis orders nothing"
    world.control.rebalance({})
    running(world, after=second)


def numbers(world):
    return world.lease.holder().parallelism


def test_a_run_has_the_numbers_of_tasks_that_were_ordered_and_spout_workers_hear_of_them(
    world, drive, caplog
):
    caplog.set_level("INFO")
    drive()
    run = running(world)
    assert numbers(world) == {"bolt": 1}
    world.control.rebalance({"bolt": 4, "gone": 3})
    run = running(world, after=run)
    assert numbers(world) == world.jobs[-1].run.topology.parallelism == {"bolt": 4}
    assert (
        world.lease.holder().shape == shape_of(world.jobs[-1].run.topology) != shape_of(topology())
    )
    assert "bolt has 4 tasks by order of tiercel rebalance, and 1 by its code" in caplog.text
    world.control.rebalance({})
    run = running(world, after=run)
    assert numbers(world) == {"bolt": 4}, "it is not named"
    world.control.rebalance({"bolt": None})
    running(world, after=run)
    assert numbers(world) == {"bolt": 1}


def test_slots_are_awaited_for_the_tasks_that_were_ordered(world, drive):
    drive()
    run = running(world)
    assert world.asked == [1]
    world.control.rebalance({"bolt": 8})
    run = running(world, after=run)
    assert world.asked == [1, 8]
    world.control.rebalance({"bolt": None})
    running(world, after=run)
    assert world.asked == [1, 8, 1]


def test_an_order_that_comes_while_no_executor_does_is_awaited(world, drive):
    ready = world.ready
    world.ready = lambda wanted: replace(ready(wanted), slots=0, absent=len(world.asked) < 5)
    driver = drive()
    wait_until(lambda: world.asked, 5, "the driver to ask")
    world.control.rebalance({"bolt": 8})
    wait_until(lambda: 8 in world.asked, 5, "the driver to ask for the order's slots")
    driver.runs.stop()


def test_a_run_whose_numbers_of_extra_tasks_are_used_up_is_followed_by_another(
    world, drive, monkeypatch
):
    def look(joining, _now):
        joining.is_used_up = len(world.jobs) == 1

    monkeypatch.setattr(runs.Joining, "look", look)
    drive()
    run = running(world)
    second = running(world, after=run)
    time.sleep(0.2)
    assert world.run == second


def test_an_order_outlives_the_driver_that_obeyed_it_and_a_redis_that_is_emptied(
    world, drive, caplog
):
    first, run = with_a_reserve(world, drive, caplog)
    world.control.rebalance({"bolt": 4})
    run = running(world, after=run)
    first.runs.stop()
    run = running(world, after=run)
    assert numbers(world) == {"bolt": 4}, "the driver in reserve obeys it too"
    world.control.lose()
    world.presences.lose()
    world.inboxes._boxes.clear()
    running(world, after=run)
    assert numbers(world) == {"bolt": 4}
    assert world.control.rebalanced(NO_REBALANCE).parallelism == {"bolt": 4}


def test_an_order_that_comes_while_a_run_begins_is_obeyed(world, drive):
    def order(run):
        if len(world.entered) == 1:
            world.control.rebalance({"bolt": 4})

    world.on_enter = order
    drive()
    wait_until(lambda: world.run and numbers(world) == {"bolt": 4}, 5, "a run that obeys")


def test_what_is_on_its_way_is_finished_before_a_topology_is_rebalanced(world, drive):
    drive()
    run = running(world)
    assert sends(world, run)
    world.control.rebalance({})
    wait_until(lambda: world.run == "", 5, "spout workers to be told to send nothing")
    assert world.inboxes.figures([BOLT])[BOLT].tuples == 1
    [(task, [entry])] = world.inboxes.drain(run)
    world.inboxes.discard(run, task, [entry.position])
    running(world, after=run)
    assert world.released[-2:] == [0, 0], "by the end of the run, and the beginning of the next"


def test_what_takes_too_long_is_released_when_a_topology_is_rebalanced(world, drive):
    drive()
    run = running(world)
    assert sends(world, run)
    began = time.monotonic()
    world.control.rebalance({})
    running(world, after=run)
    assert 0.4 < time.monotonic() - began < 10
    assert world.inboxes.figures([BOLT])[BOLT].tuples == 0


def test_a_rebalance_does_not_wait_for_the_tuples_of_a_paused_bolt(world, drive, monkeypatch):
    monkeypatch.setattr(run_watch, "_DRAIN_S", 60.0)
    drive()
    run = running(world)
    world.control.pause("bolt")
    assert sends(world, run)
    world.control.rebalance({})
    running(world, after=run)
    assert world.inboxes.figures([BOLT])[BOLT].tuples == 0


def test_a_killed_topology_ends_the_driver_that_runs_and_those_in_reserve(world, drive, caplog):
    caplog.set_level("INFO")
    first = drive()
    running(world)
    second = drive()
    wait_until(lambda: "standing by" in caplog.text, 5, "the second driver to wait")
    world.control.order(State.KILLED)
    wait_until(lambda: first.ended and second.ended, 10, "both drivers to end")
    assert world.lease.holder() is None
    assert len(world.jobs) == 1
    assert not world.jobs[0].active


def test_a_stopped_driver_gives_the_lease_up_and_keeps_it_given_up(world, drive):
    driver = drive()
    running(world)
    driver.runs.stop()
    wait_until(lambda: driver.ended, 5, "the driver to end")
    for _ in range(30):
        assert world.lease.holder() is None
        time.sleep(0.01)
    assert world.entered[-1].endswith("-ended")


def test_a_driver_that_waits_for_redis_ends_when_it_is_told(world, drive):
    away = Away(world.lease)
    away.away = True
    driver = drive(lease=away)
    time.sleep(0.2)
    driver.runs.stop()
    wait_until(lambda: driver.ended, 5, "the driver to end")
    assert driver.error is None


def test_what_is_remembered_grows_old_while_the_topology_is_active_and_runs(
    world, drive, monkeypatch
):
    """A message that waits while it is deactivated may be one that was applied before."""
    monkeypatch.setattr(run_watch, "AGED_EVERY_S", 0.02)
    aged = []
    looked = threading.Event()
    state = world.control.state

    def seen():
        looked.set()
        return state()

    monkeypatch.setattr(world.control, "state", seen)

    def looks(number=4):
        for _ in range(number):
            looked.clear()
            assert looked.wait(10)

    drive(age=lambda: aged.append(state()))
    wait_until(lambda: len(aged) > 2, 10, "it grows older")
    world.control.order(State.DEACTIVATED)
    looks()
    before = len(aged)
    looks()
    assert len(aged) == before
    world.control.order(State.ACTIVE)
    wait_until(lambda: len(aged) > before, 10, "it grows older again")

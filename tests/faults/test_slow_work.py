"""Slow bolts while a process dies: each message is acked, and only tuples in flight are executed
again.
"""

import os
import signal
import time

import pytest

from tests.faults.burdens import SLOW, TIMED, TIMED_S, Executions
from tests.faults.numbered import executor_of
from tests.faults.wired import Wired
from tests.support.children import python_workers
from tests.support.waiting import wait_until
from tiercel import Publisher

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]

MESSAGES = 60
# Messages executed before each fault, so that several are in flight.
BEFORE = 8
# Interval between messages, such that two of four tasks can keep up.
APART_S = 0.75
BEFORE_TIMED = 10
# A tuple that no process was executing at the death may be late by this.
LATE_S = 1.5
# Generous: Spark restarts on a machine that may be busy.
WITHIN_S = 200


def python_worker_killed(wired):
    """Kill a Python worker in the middle of its work."""
    os.kill(
        wait_until(lambda: busy_workers(wired), 60, "a Python worker to work")[0], signal.SIGKILL
    )
    return wired.in_flight()


def driver_killed(wired):
    os.kill(wired.pid("driver"), signal.SIGKILL)
    return wired.in_flight()


def busy_workers(wired):
    workers = python_workers(wired.pid("driver"))
    return [pid for pid in Executions(wired.folder).busy if pid in workers]


@pytest.fixture(scope="module")
def wired(tmp_path_factory, servers):
    folder = tmp_path_factory.mktemp("effects")
    with Wired(
        "tests.faults.burdens:slow", SLOW, folder, master="local[2]", servers=servers
    ) as wired:
        wired.spark_run()
        yield wired


def test_slow_work_survives_a_python_worker_and_the_driver(wired):
    """The settings are the defaults.

    Nothing times out: tuples that a new run of Spark takes up have their whole timeout again.
    """
    published_at = time.time()
    with Publisher(wired.rabbitmq.url) as publisher:
        publisher.publish(SLOW, (b'{"number": %d}' % number for number in range(MESSAGES)))
    in_flight = []
    for fault in (python_worker_killed, driver_killed):
        enough = len(Executions(wired.folder).done) + BEFORE
        wait_until(
            lambda enough=enough: len(Executions(wired.folder).done) >= enough,
            WITHIN_S,
            f"{enough} messages",
        )
        in_flight.append(fault(wired))
    struck_at = time.time()
    wait_until(lambda: wired.counts()["acked"] >= MESSAGES, WITHIN_S, "every message to be acked")
    wired.rests(60)
    found = Executions(wired.folder)
    counts = wired.counts()
    shown = {name: count for name, count in counts.items() if not name.startswith("complete")}
    repeats = found.begun.total() - MESSAGES
    last_s = found.last_at - published_at
    goes_on_s = min(at for at in found.first_at.values() if at > struck_at) - struck_at
    print(  # noqa: T201
        f"in flight when struck {in_flight}, {repeats} repeats; goes on after {goes_on_s:.1f} s, "
        f"done after {last_s:.1f} s; {shown}"
    )
    assert set(found.done) == {str(number) for number in range(MESSAGES)}
    assert repeats <= sum(in_flight)
    assert counts["acked"] == MESSAGES
    assert counts["timeout"] == counts["failed"] == 0
    assert wired.dead_lettered() == 0


def executor_killed(wired):
    worker = wait_until(lambda: busy_workers(wired), 60, "a Python worker to work")[0]
    os.kill(executor_of(worker), signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "tasks"),
    [
        pytest.param(python_worker_killed, 1, id="worker"),
        pytest.param(executor_killed, 2, id="executor", marks=pytest.mark.slow),
    ],
)
def test_only_what_a_process_was_executing_when_it_died_takes_longer(timed, kill, tasks):
    """Compared with the publishing schedule: a process claims no slow tuple before it can execute
    it.
    """
    before = len(Executions(timed.folder).first_at)
    numbers = range(before, before + 3 * BEFORE_TIMED)
    due = {}
    with Publisher(timed.rabbitmq.url) as publisher:
        began = time.time()
        for number in numbers:
            time.sleep(max(0.0, began + (number - before) * APART_S - time.time()))
            due[str(number)] = time.time()
            publisher.publish(TIMED, [b'{"number": %d}' % number])
            if number == before + BEFORE_TIMED:
                kill(timed)
    wait_until(
        lambda: len(Executions(timed.folder).first_at) >= before + len(numbers),
        WITHIN_S,
        "every message to be executed",
    )
    timed.rests(60)
    found = Executions(timed.folder)
    again = {number for number in due if found.begun[number] > 1}
    late_s = {number: found.first_at[number] - at - TIMED_S for number, at in due.items()}
    others = {number: at for number, at in late_s.items() if number not in again}
    print(  # noqa: T201
        f"executed again: { {number: round(late_s[number], 2) for number in again} }; the latest "
        f"of the others {max(others.values()):.2f} s"
    )
    assert 1 <= len(again) <= tasks
    assert max(others.values()) < LATE_S, others
    assert timed.counts()["failed"] == timed.counts()["timeout"] == 0


@pytest.fixture(scope="module")
def timed(tmp_path_factory, servers):
    """Two executors of two tasks each."""
    folder = tmp_path_factory.mktemp("timed")
    with Wired(
        "tests.faults.burdens:timed",
        TIMED,
        folder,
        master="local-cluster[2,2,1024]",
        servers=servers,
    ) as wired:
        wired.spark_run()
        with Publisher(wired.rabbitmq.url) as publisher:
            publisher.publish(TIMED, [b'{"number": %d}' % number for number in range(4)])
        wait_until(lambda: len(Executions(folder).first_at) == 4, WITHIN_S, "the first messages")
        yield wired

"""The pace after faults under a light load: a burst leaves as fast as before them."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from tests.faults.burdens import PACED
from tests.faults.wired import Wired
from tests.support.children import Python, kill, python_processes
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.workers.control.presence import Lease
from tiercel.workers.control.redis_control import RedisPresences

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]

BURST = 30_000
WITHIN_S = 200
# Allows for the machine's noise: a bound that stays as the fault left it makes it ten or more.
FACTOR = 3.0
STARTED_S = 3.0
# Four message timeouts of the topology: with the default one this would be two minutes.
UNFIT_S = 20.0
# The most starts of Python before it is found to be broken. Spark alone would try some 180 times
# per second.
MOST_STARTS = 1_000


@contextmanager
def light_load(amqp_url):
    """Publish five messages per second that take 0.2 s each."""
    ended = threading.Event()

    def publish():
        with Publisher(amqp_url) as publisher:
            while not ended.wait(0.2):
                publisher.publish(PACED, [b'{"seconds": 0.2}'])

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def burst_s(wired):
    """Publish a burst, and return the seconds until all of it is acked."""
    acked = wired.counts()["acked"]
    began = time.monotonic()
    with Publisher(wired.rabbitmq.url) as publisher:
        publisher.publish(PACED, [b'{"seconds": 0}'] * BURST)
    wait_until(lambda: wired.counts()["acked"] >= acked + BURST, WITHIN_S, "the burst to be acked")
    return time.monotonic() - began


def at_work(wired):
    acked = wired.counts()["acked"]
    wait_until(
        lambda: wired.counts()["acked"] > acked + 20, WITHIN_S, "twenty messages to be acked"
    )


def two_restarts_of_the_driver(wired):
    for _ in range(2):
        run = wired.spark_run()
        at_work(wired)
        os.kill(wired.pid("driver"), signal.SIGKILL)
        wait_until(lambda run=run: wired.spark_run() != run, WITHIN_S, "a new run")


def no_executor_can_start_python(wired, python):
    """The driver is restarted in between."""

    def trouble():
        with closing(Lease(RedisPresences(wired.redis.url, wired.topology.name))) as lease:
            holder = lease.holder()
        return holder.trouble if holder else ""

    at_work(wired)
    python.becomes("exit 3")
    driver = wired.pid("driver")
    for pid in python_processes(driver):
        os.kill(pid, signal.SIGKILL)
    wait_until(trouble, WITHIN_S, "the driver to find no executor fit")
    print(f"{python.starts} starts of Python until then")  # noqa: T201
    assert python.starts < MOST_STARTS
    time.sleep(UNFIT_S / 2)
    kill(wired.child("driver"), signal.SIGKILL)
    wait_until(trouble, WITHIN_S, "the next driver to find no executor fit")
    time.sleep(UNFIT_S / 2)
    python.becomes("")


@dataclass(frozen=True, kw_only=True)
class Paced:
    """The topology, the Python of its executors, and the seconds of a burst before any outage."""

    wired: Wired
    python: Python
    before_s: float

    def leaves_as_before(self, outage: Callable[[], None]) -> None:
        """Have the outage under a light load, and compare the bursts before and after it."""
        with light_load(self.wired.rabbitmq.url):
            outage()
            at_work(self.wired)
        self.wired.rests(WITHIN_S)
        after_s = burst_s(self.wired)
        print(f"{BURST} messages before: {self.before_s:.1f} s, after: {after_s:.1f} s")  # noqa: T201
        assert after_s <= FACTOR * self.before_s + STARTED_S
        assert self.wired.dead_lettered() == 0


@pytest.fixture(scope="module")
def paced(tmp_path_factory, servers):
    """One topology for all outages: each leaves it as fast as before."""
    python = Python(tmp_path_factory.mktemp("python"))
    python.becomes("")
    effects = tmp_path_factory.mktemp("effects")
    topology = "tests.faults.burdens:paced"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", str(python.path))
        with Wired(topology, PACED, effects, master="local[2]", servers=servers) as wired:
            wired.spark_run()
            burst_s(wired)
            yield Paced(wired=wired, python=python, before_s=burst_s(wired))


def test_after_two_restarts_of_the_driver_under_a_light_load_a_burst_leaves_as_before(paced):
    paced.leaves_as_before(lambda: two_restarts_of_the_driver(paced.wired))


@pytest.mark.slow
def test_after_a_time_without_a_working_python_under_a_light_load_a_burst_leaves_as_before(paced):
    paced.leaves_as_before(lambda: no_executor_can_start_python(paced.wired, paced.python))

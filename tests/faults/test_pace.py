"""The pace after faults under a light load: a burst leaves as fast as it did before them."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from tests.faults.burdens import PACED
from tests.faults.wired import Wired
from tests.support.waiting import wait_until
from tiercel import Publisher

pytestmark = pytest.mark.timeout(600)

BURST = 20_000
WITHIN_S = 200
# Of the machine's noise: a bound that stays where the fault left it makes this ten and more.
FACTOR = 3.0
STARTED_S = 3.0


@contextmanager
def light_load(amqp_url):
    """Five messages per second, which take 0.2 s each."""
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


def test_after_two_restarts_of_the_driver_under_a_light_load_a_burst_leaves_as_before(
    tmp_path, servers
):
    with Wired(
        "tests.faults.burdens:paced", PACED, tmp_path, master="local[2]", servers=servers
    ) as wired:
        wired.spark_run()
        burst_s(wired)
        before_s = burst_s(wired)
        with light_load(wired.rabbitmq.url):
            for _ in range(2):
                run = wired.spark_run()
                acked = wired.counts()["acked"]
                wait_until(lambda acked=acked: wired.counts()["acked"] > acked + 20, WITHIN_S)
                os.kill(wired.pid("driver"), signal.SIGKILL)
                wait_until(lambda run=run: wired.spark_run() != run, WITHIN_S, "a new run")
            acked = wired.counts()["acked"]
            wait_until(lambda: wired.counts()["acked"] > acked + 20, WITHIN_S)
        wired.rests(WITHIN_S)
        after_s = burst_s(wired)
        print(f"{BURST} messages before: {before_s:.1f} s, after: {after_s:.1f} s")  # noqa: T201
        assert after_s <= FACTOR * before_s + STARTED_S
        assert wired.dead_lettered() == 0

"""Random kills under a query over a queue, on a cluster of two executors: nothing is lost."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from datetime import timedelta

import pytest

from tests.support.broker import ready, restart_in_order, unique
from tests.support.data_frames import new_queue, pids, reader_pids, worker_pids
from tests.support.frame_driver import FrameDriver
from tests.support.waiting import wait_until
from tiercel import Publisher

# Slow: it lasts as long as the topologies' soak.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

_RATE = 300
# Messages that piled up during a fault are processed in a few of these.
_BATCH = 3_000
# If no row comes for this long, something is stuck or lost.
_STUCK_S = 150.0
_PAUSE_S = 6.0
# A killed broker is back within this time, even on a busy machine.
_PATIENCE = timedelta(minutes=2)
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


def test_no_message_of_a_query_is_lost(rabbitmq, tmp_path, pytestconfig):
    minutes = pytestconfig.getoption("soak_minutes")
    seed = pytestconfig.getoption("soak_seed") or secrets.randbelow(2**32)
    print(f"soak of {minutes:g} minutes; to repeat it: --soak-seed={seed}")  # noqa: T201
    draw = random.Random(seed)
    broker = rabbitmq()
    queue = new_queue(broker.url, unique())
    restart_in_order(broker)
    driver = FrameDriver(
        broker.url, queue, tmp_path, master="local-cluster[2,1,1024]", batch=_BATCH
    )
    driver.start()
    load = _Load(broker.url, queue)
    drawn = []
    try:
        wait_until(lambda: len(driver.written()) > 1_000, 120, driver.log[-2000:])
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            drawn.append(draw.choice(["driver", "executor", "python worker", "reader", "broker"]))
            print(f"  {time.strftime('%H:%M:%S')} {drawn[-1]}", flush=True)  # noqa: T201
            _strike(drawn[-1], driver, broker, draw)
            _pause(driver, draw.uniform(1, _PAUSE_S))
        load.stop()
        _wait_for_the_rest(driver, load.sent)
        wait_until(lambda: ready(broker.url, queue) == 0, 60)
    finally:
        load.stop()
        driver.close()
    repeated = driver.written().total() - load.sent
    print(f"{len(drawn)} kills, {load.sent} messages, 0 lost, {repeated} repeated")  # noqa: T201


def _strike(what, driver, broker, draw):
    if what == "driver":
        driver.kill()
    elif what == "broker":
        broker.kill()
        broker.start()
    else:
        found = {
            "executor": lambda: pids(_EXECUTOR, driver.pid),
            "python worker": lambda: worker_pids(driver.pid),
            "reader": lambda: reader_pids(driver.pid),
        }[what]()
        if found:
            os.kill(draw.choice(found), signal.SIGKILL)


def _pause(driver, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _goes_on(driver)
        time.sleep(0.2)


def _wait_for_the_rest(driver, sent):
    """Wait as long as rows come: after the last kill, thousands of messages may be in the queue."""
    written = -1
    since = time.monotonic()
    while (now := len(driver.written())) < sent:
        _goes_on(driver)
        if now != written:
            written = now
            since = time.monotonic()
        stuck = time.monotonic() - since > _STUCK_S
        assert not stuck, f"{sent - now} of {sent} messages are missing\n{driver.log[-3000:]}"
        time.sleep(1)


def _goes_on(driver):
    """Restart the driver when it has ended, as an operator's supervisor does."""
    if not driver.is_running:
        driver.start()
    return True


class _Load:
    """Publishes numbers, each confirmed, until stopped."""

    def __init__(self, amqp_url, queue):
        self.sent = 0
        self._amqp_url, self._queue = amqp_url, queue
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join(60)

    def _run(self):
        with Publisher(self._amqp_url, _PATIENCE) as publisher:
            while not self._stopped.wait(0.1):
                count = _RATE // 10
                numbers = range(self.sent, self.sent + count)
                publisher.publish(self._queue, [b"%d" % number for number in numbers])
                self.sent += count

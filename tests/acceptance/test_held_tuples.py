"""Tuples that bolts hold, on the whole stack: they outlive processes, and come again where they cannot."""

import os
import random
import signal
from collections import Counter
from contextlib import ExitStack

import pytest

from acker import open_ledger
from compose import EmbeddedServices
from queues import Publisher, WorkQueue, declare_queue
from queues.depths import depths
from spark_jobs.job import ledger_spec_of
from spark_jobs.levels import plan_topology
from tests.acceptance import joined
from tests.children import kill, python_workers
from tests.waiting import wait_until
from workers.config import Settings
from workers.local import LocalRun

pytestmark = pytest.mark.timeout(300)

PAIRS = 400
_SEED = 5


@pytest.fixture
def running(tmp_path):
    with ExitStack() as exits:
        exits.enter_context(pytest.MonkeyPatch.context()).setenv(joined.EFFECTS, str(tmp_path))
        services = exits.enter_context(EmbeddedServices())
        settings = Settings.load(master="local[2]").with_services(
            services.amqp_url, services.redis_url, services.management_url
        )
        for side in ("left", "right"):
            declare_queue(services.amqp_url, WorkQueue(name=side))
        run = exits.enter_context(LocalRun("tests.acceptance.joined:topology", joined.topology(), settings))
        yield services, run, tmp_path


def publish(services, queue, numbers) -> None:
    with Publisher(services.amqp_url) as publisher:
        publisher.publish(queue, (b'{"number": %d, "value": %d}' % (number, number * number) for number in numbers))


def effects(folder) -> list[tuple[int, ...]]:
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    return [tuple(map(int, line.split())) for line in lines]


def test_a_join_outlives_a_python_worker_and_a_driver(running):
    services, run, folder = running
    ledger = open_ledger(ledger_spec_of(plan_topology(joined.topology(), max_lanes=2), (services.redis_url,)))
    numbers = random.Random(_SEED).sample(range(PAIRS), PAIRS)

    publish(services, "left", range(PAIRS))
    wait_until(lambda: ledger.pending() == PAIRS, 90, "all messages of one side to be on their way")
    wait_until(lambda: unacked(services) == PAIRS, 30, "the broker to have given all of them")
    publish(services, "right", numbers[:100])
    wait_until(lambda: len(effects(folder)) == 100, 60, "the first pairs")
    wait_until(lambda: ledger.pending() == PAIRS - 100, 30, "these to be acked, and no other")
    counted = Counter(pairs for *_, pairs in effects(folder))
    assert set(counted.values()) <= {1, 2}, "each task counts its pairs from 1 on, wherever it runs"

    os.kill(python_workers(run.driver.pid)[-1], signal.SIGKILL)
    publish(services, "right", numbers[100:200])
    wait_until(lambda: len(effects(folder)) >= 200, 60, "the pairs after the workers' death")

    kill(run.driver, signal.SIGKILL)
    publish(services, "right", numbers[200:])
    wait_until(lambda: {number for number, *_ in effects(folder)} == set(range(PAIRS)), 90, "all pairs")
    wait_until(lambda: ledger.pending() == 0 and unacked(services) == 0, 90, "the ledger and the queues to be empty")

    found = effects(folder)
    assert all((left, right) == (number**2, number**2) for number, left, right, _ in found)
    print(f"{len(found) - PAIRS} of {PAIRS} pairs were joined again")  # noqa: T201
    ledger.close()


def unacked(services) -> int:
    return sum(depth.unacked or 0 for depth in depths(services.amqp_url, ["left", "right"], services.management_url))

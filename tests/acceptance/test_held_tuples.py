"""Tuples held by bolts on the whole stack: they survive their processes, or are redelivered."""

import os
import random
import signal
from collections import Counter

import pytest

from tests.acceptance import joined
from tests.support.children import kill, python_workers
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.topology.graph import ledger_spec_of

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

PAIRS = 400
_SEED = 5


@pytest.fixture
def join(tmp_path):
    with running(
        "tests.acceptance.joined:topology", tmp_path, joined.EFFECTS, queues=("left", "right")
    ) as join:
        yield join


def publish(join, queue, numbers) -> None:
    with Publisher(join.amqp_url) as publisher:
        publisher.publish(
            queue,
            (b'{"number": %d, "value": %d}' % (number, number * number) for number in numbers),
        )


def effects(folder) -> list[tuple[int, ...]]:
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    return [tuple(map(int, line.split())) for line in lines]


def test_a_join_outlives_a_python_worker_and_a_driver(join):
    ledger = open_ledger(ledger_spec_of(joined.topology(), (join.redis_url,)))
    numbers = random.Random(_SEED).sample(range(PAIRS), PAIRS)

    publish(join, "left", range(PAIRS))
    wait_until(
        lambda: ledger.pending() == PAIRS, 300, "all messages of one side to be on their way"
    )
    wait_until(lambda: unacked(join) == PAIRS, 30, "the broker to have given all of them")
    publish(join, "right", numbers[:100])
    wait_until(lambda: len(effects(join.folder)) == 100, 300, "the first pairs")
    wait_until(lambda: ledger.pending() == PAIRS - 100, 30, "these to be acked, and no other")
    counted = Counter(pairs for *_, pairs in effects(join.folder))
    assert set(counted.values()) <= {1, 2}, "each task counts its pairs from 1 on, wherever it runs"

    os.kill(python_workers(join.run.driver.pid)[-1], signal.SIGKILL)
    publish(join, "right", numbers[100:200])
    wait_until(lambda: len(effects(join.folder)) >= 200, 300, "the pairs after the workers' death")

    kill(join.run.driver, signal.SIGKILL)
    publish(join, "right", numbers[200:])
    wait_until(
        lambda: {number for number, *_ in effects(join.folder)} == set(range(PAIRS)),
        300,
        "all pairs",
    )
    wait_until(
        lambda: ledger.pending() == 0 and unacked(join) == 0,
        300,
        "the ledger and the queues to be empty",
    )

    found = effects(join.folder)
    assert all((left, right) == (number**2, number**2) for number, left, right, _ in found)
    print(f"{len(found) - PAIRS} of {PAIRS} pairs were joined again")  # noqa: T201
    ledger.close()


def unacked(join) -> int:
    return sum(depth.unacked or 0 for depth in join.depths("left", "right"))

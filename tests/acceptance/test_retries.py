"""A whole topology whose bolt retries tuples in place, while its processes die."""

import json
import os
import signal

import pytest

from tests.acceptance import retried
from tests.support.broker import put
from tests.support.children import python_workers
from tests.support.running import running
from tests.support.waiting import wait_until

COUNT = 30
BAD = [number for number in range(COUNT) if number % 3 == 0]


def lines(folder, bolt, number):
    file = folder / f"{bolt}-{number}"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.promised
@pytest.mark.timeout(300)
def test_a_worker_that_dies_while_tuples_wait_for_a_retry_loses_and_doubles_nothing(tmp_path):
    with running(
        "tests.acceptance.retried:topology", tmp_path, retried.FOLDER, queues=(retried.QUEUE,)
    ) as stack:
        put(stack.amqp_url, retried.QUEUE, *[json.dumps({"n": n}).encode() for n in range(COUNT)])
        good = [number for number in range(COUNT) if number not in BAD]
        wait_until(lambda: all(lines(tmp_path, "sink", n) for n in good), 120, "the good numbers")
        wait_until(lambda: all(lines(tmp_path, "call", n) for n in BAD), 30, "the first attempts")
        unacked = lambda: stack.depths(retried.QUEUE)[0].unacked  # noqa: E731
        wait_until(lambda: unacked() == len(BAD), 10, "the good numbers to be acked")
        # Only the retries are left, and they wait.
        for worker in python_workers(stack.run.driver.pid):
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: unacked() == 0, 120, "all numbers to be acked")
        [depth] = stack.depths(retried.QUEUE)
        assert (depth.ready, depth.dead_lettered or 0) == (0, 0)
    for number in range(COUNT):
        assert len(lines(tmp_path, "sink", number)) == 1, f"{number} was emitted once"
        calls = [line.split()[1] for line in lines(tmp_path, "call", number)]
        assert len(calls) == (2 if number in BAD else 1)
        assert len(set(calls)) == len(calls), "the attempts were made by different processes"


@pytest.mark.promised
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_tuples_wait_longer_than_their_messages_live(tmp_path):
    with running(
        "tests.acceptance.retried:short_lived", tmp_path, retried.FOLDER, queues=(retried.QUEUE,)
    ) as stack:
        put(stack.amqp_url, retried.QUEUE, *[json.dumps({"n": n}).encode() for n in range(COUNT)])
        wait_until(
            lambda: all(lines(tmp_path, "sink", n) for n in range(COUNT)), 120, "all numbers"
        )
        wait_until(lambda: stack.depths(retried.QUEUE)[0].unacked == 0, 30, "an empty queue")
    for number in range(COUNT):
        assert len(lines(tmp_path, "sink", number)) == 1
        times = [float(line.split()[0]) for line in lines(tmp_path, "call", number)]
        assert len(times) == (2 if number in BAD else 1)
        if number in BAD:
            assert times[1] - times[0] >= retried.WAIT_S

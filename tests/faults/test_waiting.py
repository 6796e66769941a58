"""Faults during waits: a message on its way into a delay queue, a long call, a line before a rate
limit.
"""

import json
import os
import signal
from contextlib import contextmanager, suppress

import pytest

from tests.faults import waiting
from tests.faults.deadly import EFFECTS
from tests.faults.numbered import executor_of
from tests.support.children import python_workers
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.queues.errors import QueuesError

pytestmark = pytest.mark.timeout(900)

MESSAGES = 100
WITHIN_S = 300


@contextmanager
def at_work(topology, queue, tmp_path, servers, master="local[2]"):
    with running(
        f"tests.faults.waiting:{topology}",
        tmp_path,
        EFFECTS,
        queues=(queue,),
        servers=servers,
        master=master,
    ) as stack:
        yield stack


def publish(stack, queue, numbers):
    with Publisher(stack.amqp_url) as publisher:
        publisher.publish(queue, (json.dumps({"number": one}).encode() for one in numbers))


def drained(stack, queue):
    with suppress(QueuesError):
        (depth,) = stack.depths(queue)
        return depth if not (depth.ready or depth.unacked or depth.delayed) else None
    return None


def test_work_that_waits_survives_a_worker_killed_after_a_copy_and_an_executor_in_a_long_call(
    tmp_path, servers
):
    with at_work("topology", waiting.QUEUE, tmp_path, servers, "local-cluster[2,1,1024]") as stack:
        numbers = range(MESSAGES)
        publish(stack, waiting.QUEUE, numbers[:10])
        wait_until(lambda: waiting.executed(tmp_path, "long", 0), 120, "the first number")

        (tmp_path / waiting.ARMED).touch()
        publish(stack, waiting.QUEUE, numbers[10:])
        wait_until(lambda: not (tmp_path / waiting.ARMED).exists(), 60, "the worker's death")
        wait_until(
            lambda: all(waiting.executed(tmp_path, "long", one) for one in numbers),
            WITHIN_S,
            "every number, after the worker's death",
        )
        [long] = waiting.LONG
        publish(stack, waiting.QUEUE, [long])
        [(_, pid)] = wait_until(
            lambda: waiting.executed(tmp_path, "long", long), 60, "the long call"
        )
        os.kill(executor_of(pid), signal.SIGKILL)
        # The broker's figures are seconds old: the queue may look empty before that.
        wait_until(
            lambda: len(waiting.executed(tmp_path, "long", long)) > 1,
            WITHIN_S,
            "another call, for it was in one when its executor died",
        )
        depth = wait_until(lambda: drained(stack, waiting.QUEUE), WITHIN_S, "an empty queue")
        assert depth.dead_lettered == 0
    calls = waiting.executed(tmp_path, "long", long)
    again = [one for one in numbers if len(waiting.executed(tmp_path, "long", one)) > 1]
    print(  # noqa: T201
        f"spout worker: killed between a copy and its ack: {len(again)} of {MESSAGES} processed "
        f"twice; executor killed in a call of {waiting.LONG_S:.0f} s: {len(calls)} calls"
    )
    assert len(calls) == 2, "its timeout began anew in both"


@pytest.mark.slow
def test_a_limit_holds_while_python_workers_are_killed(tmp_path, servers):
    count = 15 * waiting.RATE
    with at_work("limited", waiting.LIMITED_QUEUE, tmp_path, servers) as stack:
        publish(stack, waiting.LIMITED_QUEUE, range(count))

        def done():
            return sum(1 for _ in tmp_path.glob("limited-*"))

        for part in (1, 2):
            wait_until(lambda least=part * count // 4: done() >= least, 120, "some numbers")
            workers = wait_until(lambda: python_workers(stack.run.driver.pid), 60, "a worker")
            os.kill(workers[-1], signal.SIGKILL)
        wait_until(lambda: done() == count, WITHIN_S, "every number")
        depth = wait_until(
            lambda: drained(stack, waiting.LIMITED_QUEUE), WITHIN_S, "an empty queue"
        )
        assert depth.dead_lettered == 0
    times = sorted(
        at for one in range(count) for at, _ in waiting.executed(tmp_path, "limited", one)
    )
    assert len(times) <= count + 2 * 2 * waiting.RATE, "repeated is what was under way"
    most = max(
        sum(at <= other < at + 5 for other in times[first:]) for first, at in enumerate(times)
    )
    # On top of the rate: a full bucket, and the sealed step of each death.
    assert most <= 5 * waiting.RATE + 3 + 2 * waiting.RATE

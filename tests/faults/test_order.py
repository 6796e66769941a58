"""Order per key while executors, Python workers and the spout worker are killed, and some tuples
fail.
"""

import json
import os
import signal
from contextlib import suppress

import pytest

from tests.faults import ordered
from tests.faults.deadly import EFFECTS
from tests.faults.numbered import executor_of
from tests.support.children import python_workers
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.queues.errors import QueuesError

# A key whose predecessor never comes again waits a minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEYS = 100
OF_EACH = 60
WITHIN_S = 400


def test_no_tuple_overtakes_another_of_its_key_whatever_is_killed_or_fails(tmp_path, servers):
    with running(
        "tests.faults.ordered:topology",
        tmp_path,
        EFFECTS,
        queues=(ordered.QUEUE,),
        servers=servers,
        master="local-cluster[2,1,1024]",
    ) as stack:
        with Publisher(stack.amqp_url) as publisher:
            publisher.publish(
                ordered.QUEUE,
                (
                    json.dumps({"key": f"k{key}", "number": number}).encode()
                    for number in range(OF_EACH)
                    for key in range(KEYS)
                ),
            )

        def worker():
            return wait_until(lambda: python_workers(stack.run.driver.pid), 60, "a worker")[-1]

        kills = (
            lambda: os.kill(worker(), signal.SIGKILL),
            lambda: os.kill(executor_of(worker()), signal.SIGKILL),
            lambda: os.kill(stack.run.spout("messages", 0).pid, signal.SIGKILL),
            lambda: os.kill(worker(), signal.SIGKILL),
        )
        total = KEYS * OF_EACH
        for part, kill in enumerate(kills, start=1):
            least = part * total // (len(kills) + 1)
            wait_until(
                lambda least=least: ordered.succeeded(tmp_path, "store") >= least,
                WITHIN_S,
                f"{least} tuples",
            )
            kill()
        wait_until(lambda: ordered.succeeded(tmp_path, "store") == total, WITHIN_S, "every tuple")

        def drained():
            with suppress(QueuesError):
                (depth,) = stack.depths(ordered.QUEUE)
                return depth if not (depth.ready or depth.unacked) else None
            return None

        assert wait_until(drained, WITHIN_S, "an empty queue").dead_lettered == 0
    for bolt in ("call", "store"):
        lines = ordered.lines_of(tmp_path, bolt)
        begun = sum(what == "begins" for what, _, _ in lines)
        print(f"{bolt}: {begun} executions of {total} tuples")  # noqa: T201
        assert ordered.inversions(tmp_path, bolt) == []

"""A window of more messages than its spout may hold stands still, and is never closed without the
rest of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.acceptance import standing
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.queues.broker.depths import depths
from tiercel.spark_jobs.spark.run import STANDSTILL_S

pytestmark = pytest.mark.timeout(300)

START_MS = 1_700_000_000_000
COUNT = 100


@pytest.fixture
def stack(tmp_path):
    with running(
        "tests.acceptance.standing:topology",
        tmp_path,
        standing.FOLDER,
        queues=(standing.QUEUE,),
    ) as stack:
        yield stack


def publish(stack, count, at_ms):
    with Publisher(stack.amqp_url) as publisher:
        publisher.publish(
            standing.QUEUE,
            [json.dumps({"number": n, "at": at_ms + n}).encode() for n in range(count)],
        )


def counts(stack):
    path = stack.folder / "counts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def standing_still(stack):
    """Return the finding of ``tiercel status``, or None: the first window may have just closed."""
    command = [sys.executable, "-m", "tiercel", "status", standing.NAME, "--json"]
    servers = ["--redis", stack.redis_url, "--amqp", stack.amqp_url]
    done = subprocess.run([*command, *servers], capture_output=True, text=True, check=False)
    findings = json.loads(done.stdout)["findings"]
    return next((each for each in findings if each["kind"] == "windows_stand"), None)


def test_a_window_of_more_messages_than_a_spout_may_hold_never_closes_without_some_of_them(stack):
    publish(stack, 10, START_MS - 60_000)
    wait_until(lambda: counts(stack) == [10], 240, "a window that the spout can hold")
    publish(stack, COUNT, START_MS)
    time.sleep(STANDSTILL_S + 3 * standing.IDLE_S)
    assert counts(stack) == [10]
    [depth] = depths(stack.amqp_url, [standing.QUEUE])
    assert not depth.dead_lettered
    # Consumers before the newest may have messages too: the newest began with no more than that.
    assert COUNT - depth.ready <= 2 * standing.PREFETCH
    found = wait_until(lambda: standing_still(stack), 150, "health to say that windows stand still")
    assert (found["component"], found["level"]) == ("count", "in_trouble")
    assert "stand still, as numbers can send nothing" in found["reason"]

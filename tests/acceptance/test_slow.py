"""Messages that would time out if they waited for one another: all tasks work on them, and none
times out.
"""

from __future__ import annotations

import time

import pytest

from tests.acceptance import slow
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

MESSAGES = 24


@pytest.fixture
def stack(tmp_path):
    with running(
        "tests.acceptance.slow:topology", tmp_path, slow.FOLDER, queues=(slow.QUEUE,)
    ) as stack:
        yield stack


def begun(stack) -> list[tuple[int, float]]:
    """Return each execution of a message and its time, in order."""
    paths = list(stack.folder.iterdir())
    lines = [line.split() for path in paths for line in path.read_text().splitlines()]
    return sorted(((int(number), float(at)) for number, at in lines), key=lambda one: one[1])


def most_at_once(stack) -> int:
    times = [at for _, at in begun(stack)]
    return max(sum(at - slow.WORK_S < before <= at for before in times) for at in times)


def test_each_message_is_executed_once_and_all_tasks_are_busy(stack):
    with Publisher(stack.amqp_url) as publisher:
        publisher.publish(slow.QUEUE, [b'{"number": %d}' % number for number in range(MESSAGES)])
    wait_until(lambda: len(begun(stack)) >= MESSAGES, 400, "all messages to begin")
    # A figure of RabbitMQ's HTTP API is up to five seconds old.
    time.sleep(slow.WORK_S + 6)
    [depth] = stack.depths(slow.QUEUE)
    assert (depth.ready, depth.unacked) == (0, 0)
    assert sorted(number for number, _ in begun(stack)) == list(range(MESSAGES))
    assert most_at_once(stack) == slow.TASKS

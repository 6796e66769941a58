"""A whole topology whose bolts want messages later, and take longer than the message timeout."""

import json

import pytest

from tests.acceptance import later
from tests.support.broker import put
from tests.support.running import running
from tests.support.waiting import wait_until

COUNT = 20


@pytest.mark.promised
@pytest.mark.timeout(240)
def test_what_is_wanted_later_comes_then_and_a_long_call_is_made_once(tmp_path):
    with running(
        "tests.acceptance.later:topology", tmp_path, later.FOLDER, queues=(later.QUEUE,)
    ) as stack:
        put(stack.amqp_url, later.QUEUE, *[json.dumps({"n": n}).encode() for n in range(COUNT)])
        wait_until(lambda: len(list(tmp_path.glob("long-*"))) == COUNT, 120, "all numbers")

        def drained():
            (depth,) = stack.depths(later.QUEUE)
            return depth.ready == depth.unacked == 0

        wait_until(drained, 90, "an empty queue")
        (depth,) = stack.depths(later.QUEUE)
        assert not depth.dead_lettered
    for number in range(COUNT):
        first, *others = map(float, (tmp_path / f"later-{number}").read_text().splitlines())
        assert len(others) == 1, f"{number} was executed {1 + len(others)} times"
        # Never sooner; the delay beyond depends on the machine.
        assert later.SECONDS <= others[0] - first < later.SECONDS + 60
        calls = (tmp_path / f"long-{number}").read_text().splitlines()
        assert len(calls) == 1, f"{number}, though none of them timed out"

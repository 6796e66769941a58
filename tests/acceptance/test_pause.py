"""Bolts paused for many message timeouts, through the death of the driver: nothing fails, times out
or is executed twice, and bolts that do not depend on them go on.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest
from typer.testing import CliRunner

from tests.acceptance import paused
from tests.support.load import Load
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.ledger import LIFETIMES
from tiercel.acker.metrics.contract import total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.workers.cli.app import app

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

# The ledger forgets trees after this many timeouts.
PAUSED_S = (LIFETIMES + 2) * paused.TIMEOUT_S
FIRST = range(100)
HELD = range(100, 400)


@pytest.fixture
def stack(tmp_path):
    with running(
        "tests.acceptance.paused:topology",
        tmp_path,
        paused.FOLDER,
        queues=(paused.QUEUE, paused.BESIDE),
    ) as stack:
        yield stack


def written(stack, bolt) -> Counter[int]:
    """Count how often ``bolt`` executed each number."""
    paths = [path for path in stack.folder.iterdir() if path.name.startswith(f"{bolt}-")]
    return Counter(int(line) for path in paths for line in path.read_text().split())


def publish(stack, numbers) -> None:
    with Publisher(stack.amqp_url) as publisher:
        publisher.publish(paused.QUEUE, [b'{"number": %d}' % number for number in numbers])


def order(stack, word, bolt) -> str:
    arguments = [word, paused.NAME, "--bolt", bolt, "--redis", stack.redis_url]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def status(stack) -> str:
    arguments = ["status", paused.NAME, "--redis", stack.redis_url, "--amqp", stack.amqp_url]
    return CliRunner().invoke(app, arguments).stdout


def test_bolts_are_paused_for_long_and_nothing_fails_or_is_executed_twice(stack):
    metrics = RedisMetrics(stack.redis_url, paused.NAME)
    publish(stack, FIRST)
    for bolt in ("record", "keyed"):
        wait_until(lambda bolt=bolt: len(written(stack, bolt)) == len(FIRST), 240, bolt)
    for bolt in ("record", "keyed"):
        assert "is paused" in order(stack, "pause", bolt)
    time.sleep(2.5)  # the order takes effect within two seconds

    publish(stack, HELD)
    with Load(stack.amqp_url, paused.BESIDE, 20, 0) as load:
        began = time.monotonic()
        while time.monotonic() - began < PAUSED_S:
            time.sleep(1)
        said = status(stack)
        assert "record is paused by order" in said
        assert not any(word in said for word in ("in trouble", "is behind", "time out in"))

        os.kill(stack.run.driver.pid, signal.SIGKILL)
        before = len(written(stack, "others"))
        wait_until(lambda: len(written(stack, "others")) > before + 60, 120, "another driver")
        for bolt in ("record", "keyed"):
            assert set(written(stack, bolt)) == set(FIRST), "it stays paused"

        for bolt in ("record", "keyed"):
            assert "goes on" in order(stack, "resume", bolt)
        for bolt in ("record", "keyed"):
            wait_until(
                lambda bolt=bolt: len(written(stack, bolt)) == len(FIRST) + len(HELD), 120, bolt
            )
    for bolt in ("record", "keyed"):
        assert set(written(stack, bolt).values()) == {1}, bolt
    wait_until(lambda: set(load.published) <= set(written(stack, "others")), 120, "the others")

    def at_rest() -> bool:
        found = stack.depths(paused.QUEUE, paused.BESIDE)
        assert not any(each.dead_lettered or each.delayed for each in found)
        return not any(each.ready or each.unacked for each in found)

    wait_until(at_rest, 120, "empty queues")
    for spout in (paused.QUEUE, paused.BESIDE):
        counts = total_of(metrics.totals(), spout)
        assert not counts["failed"]
        assert not counts["timeout"]

"""Calls under way that may last longer than messages live (``execute_timeout_secs``)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.inbox_cluster import InboxCluster
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import AsyncBolt, BasicBolt, Config, Topology, TopologyBuilder
from tiercel.acker.ledger import Failure
from tiercel.testing import FeederSpout, LocalCluster

TASK = 2


class Waits(AsyncBolt):
    concurrency = 2
    free = False

    async def execute(self, tup, collector):
        while not Waits.free:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)


class Blocks(BasicBolt):
    def execute(self, tup, collector):
        while not Waits.free:
            time.sleep(0.01)


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    Waits.free = False
    with ExitStack() as exits:
        exits.callback(setattr, Waits, "free", True)
        yield exits


def topology(bolt: Any, **config: Any) -> Topology:
    builder = TopologyBuilder("long", config=Config(message_timeout_secs=0.6))
    builder.set_spout("spout", Source("word string"))
    builder.set_bolt("bolt", bolt, config=config).shuffle_grouping("spout")
    return builder.build()


@pytest.mark.parametrize(
    ("bolt", "config"), [(Waits(), {}), (Blocks(), {"threads": 2})], ids=["async", "threads"]
)
def test_while_calls_last_what_waits_for_them_does_not_time_out(
    bolt: Any, config: dict[str, Any], closing: ExitStack
) -> None:
    cluster = InboxCluster(topology(bolt, execute_timeout_secs=60, **config))
    roots = cluster.emit([[str(number)] for number in range(30)])
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    reset: Counter[int] = Counter()
    acked: list[int] = []

    def told() -> bool:
        attempt.turn(0.05)
        outcomes = cluster.outcomes()
        reset.update(outcomes.reset)
        acked.extend(outcomes.acked)
        return all(reset[root] >= 3 for root in roots)

    # Tuples under way, tuples taken, and tuples not yet taken.
    wait_until(told, 20)
    assert acked == []
    Waits.free = True
    wait_until(lambda: told() and len(acked) == 30, 20)


def test_a_call_may_last_as_long_as_its_bolt_says_and_no_longer(closing: ExitStack) -> None:
    cluster = InboxCluster(topology(Waits(), execute_timeout_secs=1.5))
    [root] = cluster.emit([["endless"]])
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    failed: list[Failure] = []
    began = time.monotonic()
    wait_until(lambda: (attempt.turn(0.05) and failed.extend(cluster.outcomes().failed)) or failed)
    assert time.monotonic() - began >= 1.4
    assert [(one.root, one.reason) for one in failed] == [
        (root, "TimeoutError: took longer than 1.5 s in execute")
    ]


def test_a_task_that_has_nothing_else_to_do_renews_in_time(closing: ExitStack) -> None:
    """All its places are taken and enough tuples wait, so it stops looking into its inbox."""
    cluster = InboxCluster(topology(Waits(), execute_timeout_secs=60, concurrency=2))
    roots = cluster.emit([[str(number)] for number in range(30)])
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    reset: Counter[int] = Counter()

    def told() -> bool:
        began = time.monotonic()
        attempt.turn(5.0)
        # The timeout is renewed every 0.2 s, since messages live for 0.6 s.
        assert time.monotonic() - began < 4
        reset.update(cluster.outcomes().reset)
        return all(reset[root] >= 3 for root in roots)

    wait_until(told, 20)


@pytest.mark.parametrize(
    ("bolt", "config"), [(Waits(), {}), (Blocks(), {"threads": 2})], ids=["async", "threads"]
)
def test_while_the_task_leaves_too(bolt: Any, config: dict[str, Any], closing: ExitStack) -> None:
    """Its executor has got SIGTERM: calls under way are finished, and take as long as before."""
    cluster = InboxCluster(topology(bolt, execute_timeout_secs=60, **config))
    roots = cluster.emit([["one"], ["two"]])
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    wait_until(lambda: attempt.turn(0.05) or attempt.kind.at_work)
    attempt.leave()
    thread = threading.Thread(target=attempt.run, daemon=True)
    thread.start()
    reset: Counter[int] = Counter()

    def told() -> bool:
        reset.update(cluster.outcomes(0.05).reset)
        return all(reset[root] >= 3 for root in roots)

    wait_until(told, 20)
    Waits.free = True
    thread.join(20)
    assert sorted(cluster.outcomes().acked) == sorted(roots)


class Sleeps(AsyncBolt):
    async def execute(self, tup, collector):
        await asyncio.sleep(3600)


def test_on_simulated_time_too_a_call_may_last_as_long_as_its_bolt_says() -> None:
    builder = TopologyBuilder("long")
    builder.set_spout("spout", FeederSpout("word string"))
    builder.set_bolt("bolt", Sleeps(), config={"execute_timeout_secs": 7200}).shuffle_grouping(
        "spout"
    )
    with LocalCluster(builder.build()) as cluster:
        cluster.spout("spout").feed(["a"], msg_id=1)
        cluster.advance_time(3601)
        assert (cluster.acked("spout"), cluster.failed("spout")) == ([1], [])

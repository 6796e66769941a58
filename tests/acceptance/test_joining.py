"""Executors join a run without an order, and one is killed, on a real standalone Spark."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance import rebalanced
from tests.support.running import running
from tests.support.standalone import Standalone
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.workers.control.presence import Lease
from tiercel.workers.control.redis_control import RedisPresences

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

# Messages per second of one executor: four tasks of 0.2 s.
RATE = 20


def written(stack) -> Counter[tuple[int, str]]:
    """(number, folder of the host) of every tuple that came to the end."""
    lines = [
        line.split() for path in stack.folder.iterdir() for line in path.read_text().splitlines()
    ]
    return Counter((int(number), place) for number, place in lines)


def rate(stack, seconds: float) -> float:
    """Messages per second that come to the end."""
    before, began = sum(written(stack).values()), time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds, seconds + 5, "the time to pass")
    return (sum(written(stack).values()) - before) / (time.monotonic() - began)


def run_of(stack) -> str:
    holder = Lease(RedisPresences(stack.redis_url, rebalanced.NAME)).holder()
    return holder.run if holder and holder.run else ""


class Numbers:
    """The numbers that were published. There is a backlog for as long as a test wants one."""

    def __init__(self, stack) -> None:
        self._stack = stack
        self.published = 0

    def publish(self, count: int) -> None:
        publish(self._stack, range(self.published, self.published + count))
        self.published += count

    def keep_up(self) -> None:
        """Publish some if the executors have nearly done the others."""
        if self.published - len(written(self._stack)) < 600:
            self.publish(600)


def used_after_s(stack, spark, name: str, numbers: Numbers) -> float:
    """Add a host; seconds from its executor's start to the first message that it executed."""

    def is_used() -> bool:
        numbers.keep_up()
        return any(place.endswith(f"{name}-tmp") for _, place in written(stack))

    spark.join()
    wait_until(lambda: numbers.keep_up() or spark.executors(name), 120, "its executor")
    began = time.monotonic()
    wait_until(is_used, 60, "its work")
    return time.monotonic() - began


def publish(stack, numbers) -> None:
    with Publisher(stack.amqp_url) as publisher:
        publisher.publish(rebalanced.QUEUE, [b'{"number": %d}' % number for number in numbers])


def none_failed(stack) -> None:
    spouts: Counter[str] = Counter()
    for task in RedisMetrics(stack.redis_url, rebalanced.NAME).totals()["numbers"].values():
        spouts.update(task)
    assert not spouts["failed"]
    assert not spouts["timeout"]


@contextmanager
def on_one_host(folder, monkeypatch, topology):
    """A topology on a standalone Spark of one host, which further hosts may join."""
    # Executors have the environment of their host.
    monkeypatch.setenv(rebalanced.FOLDER, str(folder / "work"))
    for name in ("work", "hosts"):
        (folder / name).mkdir()
    with (
        Standalone(folder / "hosts", hosts=1) as spark,
        running(
            f"tests.acceptance.rebalanced:{topology}",
            folder / "work",
            rebalanced.FOLDER,
            queues=(rebalanced.QUEUE,),
            master=spark.url,
        ) as stack,
    ):
        yield spark, stack


def test_executors_that_join_help_at_once_and_one_that_is_killed_costs_what_it_executed(
    tmp_path, monkeypatch
):
    with on_one_host(tmp_path, monkeypatch, "joined") as (spark, stack):
        numbers = Numbers(stack)
        numbers.publish(600)
        wait_until(lambda: written(stack), 240, "the topology to run")
        run = run_of(stack)
        times = [used_after_s(stack, spark, name, numbers) for name in ("host-2", "host-3")]
        numbers.publish(600)
        together = rate(stack, 8)
        log.info("used after %s s, then %.1f messages/s", times, together)
        # Below 10 s on a machine that has nothing else to do: a JVM starts, and Python twice.
        assert max(times) < 60
        assert together > 0.8 * 3 * RATE
        first = numbers.published
        wait_until(lambda: len(written(stack)) == first, 240, "every message")
        assert set(written(stack).values()) == {1}, "nothing is delivered again"
        assert run_of(stack) == run, "no new run"

        numbers.publish(1_200)
        wait_until(lambda: len(written(stack)) >= first + 100, 60, "the second part to begin")
        spark.kill("host-3")
        wait_until(
            lambda: {number for number, _ in written(stack)} == {*range(numbers.published)},
            240,
            "every message",
        )
        repeated = sum(written(stack).values()) - numbers.published
        assert repeated <= 8, "only the tuples that it was executing"
        assert run_of(stack) == run, "its tasks were extra ones"
        none_failed(stack)


class Doing(NamedTuple):
    number: int
    does: str
    place: str
    at: float


def doings(stack) -> list[Doing]:
    """Beginnings and ends of long messages."""
    return [
        Doing(int(number), does, Path(place).name.removesuffix("-tmp"), float(at))
        for path in stack.folder.iterdir()
        for number, does, place, at in map(str.split, path.read_text().splitlines())
    ]


def test_an_executor_that_gets_sigterm_finishes_what_it_executes_and_takes_nothing_new(
    tmp_path, monkeypatch
):
    with on_one_host(tmp_path, monkeypatch, "long") as (spark, stack):
        publish(stack, range(14))
        wait_until(lambda: doings(stack), 240, "the topology to run")
        run = run_of(stack)
        spark.join()
        wait_until(lambda: any(one.place == "host-2" for one in doings(stack)), 120, "its work")
        [executor] = spark.executors("host-2")
        told = time.time()
        os.kill(executor, signal.SIGTERM)
        wait_until(lambda: executor not in spark.executors("host-2"), 30, "it to end")
        left = time.time()
        # Standalone starts another executor there, which then helps too.
        here = [one for one in doings(stack) if one.place == "host-2" and one.at < left]
        begun = [one.number for one in here if one.does == "begins"]
        assert len(begun) == 2
        assert [one.number for one in here if one.does == "ends"] == begun
        assert max(one.at for one in here if one.does == "begins") < told + 2
        wait_until(lambda: sum(one.does == "ends" for one in doings(stack)) == 14, 120, "the rest")
        begun = sorted(one.number for one in doings(stack) if one.does == "begins")
        assert begun == [*range(14)], "each once"
        assert run_of(stack) == run, "no new run"
        none_failed(stack)

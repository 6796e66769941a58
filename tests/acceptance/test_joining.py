"""Executors come and go without an order, on a real standalone Spark: a cold start, one that is
killed, and one that gets SIGTERM.

``make test-joining`` has the executors come later, and takes longer messages.
"""

from __future__ import annotations

import itertools
import logging
import math
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

IS_LONG = os.environ.get("TIERCEL_TEST_LONG") == "yes"
# Messages per second of one executor: four tasks of 0.2 s.
RATE = 20
# Seconds between the work of one executor and the start of the next one.
PAUSES_S = (10, 50) if IS_LONG else (0, 0)
# A message that an executor is executing when it gets SIGTERM.
LONG_S = 20 if IS_LONG else 8
# Below 5 s on a machine that has nothing else to do.
AT_WORK_S = 30


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
        if self.published - len(written(self._stack)) < 200:
            self.publish(200)

    def keep_up_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        wait_until(lambda: self.keep_up() or time.monotonic() > until, seconds + 5)

    def all_written(self) -> bool:
        return {number for number, _ in written(self._stack)} == {*range(self.published)}


def by(stack, name: str) -> int:
    """Number of messages that an executor of this host has executed."""
    return sum(place.endswith(f"{name}-tmp") for _, place in written(stack).elements())


def at_work_after_s(stack, spark, name: str, numbers: Numbers) -> float:
    """Seconds from when Spark has a further executor of a host to the first message of it."""
    known = spark.registered(name)
    wait_until(lambda: numbers.keep_up() or spark.registered(name) > known, 120, "its executor")
    began, before = time.monotonic(), by(stack, name)
    wait_until(lambda: numbers.keep_up() or by(stack, name) > before, 60, "its work")
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
def on(hosts, folder, monkeypatch, topology):
    """A topology on a standalone Spark of this many hosts, which further hosts may join."""
    # Executors have the environment of their host.
    monkeypatch.setenv(rebalanced.FOLDER, str(folder / "work"))
    monkeypatch.setenv(rebalanced.LONG, str(LONG_S))
    for name in ("work", "hosts"):
        (folder / name).mkdir()
    with (
        Standalone(folder / "hosts", hosts=hosts) as spark,
        running(
            f"tests.acceptance.rebalanced:{topology}",
            folder / "work",
            rebalanced.FOLDER,
            queues=(rebalanced.QUEUE,),
            master=spark.url,
        ) as stack,
    ):
        yield spark, stack


def test_a_cold_start_uses_every_executor_and_one_that_is_killed_is_missed_and_replaced(
    tmp_path, monkeypatch, capfd
):
    said: list[str] = []

    def lines(part: str) -> list[str]:
        said.append(capfd.readouterr().err)
        return [line for line in "".join(said).splitlines() if part in line]

    with on(0, tmp_path, monkeypatch, "joined") as (spark, stack):
        numbers = Numbers(stack)
        numbers.publish(200)
        wait_until(lambda: lines("no executor can run bolts: Spark has no executor; "), 120)
        times = []
        for name, pause_s in (("host-1", 0), *zip(("host-2", "host-3"), PAUSES_S, strict=True)):
            numbers.keep_up_for(pause_s)
            spark.join()
            times.append(at_work_after_s(stack, spark, name, numbers))
        run = run_of(stack)
        numbers.publish(400)
        together = rate(stack, 8)
        log.warning("at work after %s s, then %.1f messages/s", times, together)
        assert max(times) < AT_WORK_S
        assert together > 0.8 * 3 * RATE
        first = numbers.published
        wait_until(numbers.all_written, 240, "every message")
        assert set(written(stack).values()) == {1}, "nothing is delivered again"

        numbers.publish(400)
        wait_until(lambda: len(written(stack)) >= first + 40, 60, "the second part to begin")
        [executor] = spark.executors("host-3")
        os.kill(executor, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: lines("is gone: "), AT_WORK_S, "it to be missed")
        missed_s = time.monotonic() - killed
        again_s = at_work_after_s(stack, spark, "host-3", numbers)
        log.warning("missed after %.1f s, the next one at work after %.1f s", missed_s, again_s)
        assert again_s < AT_WORK_S
        wait_until(numbers.all_written, 240, "every message")
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
    """Beginnings and ends of messages, in their order."""
    found = [
        Doing(int(number), does, Path(place).name.removesuffix("-tmp"), float(at))
        for path in stack.folder.iterdir()
        for number, does, place, at in map(str.split, path.read_text().splitlines())
    ]
    return sorted(found, key=lambda one: one.at)


def begins(stack, name: str = "", before: float = math.inf) -> dict[int, float]:
    """Time at which each message began, by number; of one host, or of all."""
    return {
        one.number: one.at
        for one in doings(stack)
        if one.does == "begins" and one.place.startswith(name) and one.at < before
    }


def latest_s(times: dict[int, float]) -> float:
    """Longest time by which a message began after one that was published later."""
    latest, first = 0.0, math.inf
    for number in sorted(times, reverse=True):
        latest = max(latest, times[number] - first)
        first = min(first, times[number])
    return latest


@pytest.mark.slow
def test_an_executor_that_gets_sigterm_finishes_what_it_executes_and_takes_nothing_new(
    tmp_path, monkeypatch
):
    long = iter(range(rebalanced.SHORT_FROM))
    short = iter(range(rebalanced.SHORT_FROM, 100_000))

    def more(count: int) -> bool:
        publish(stack, itertools.islice(short, count))
        return False

    def in_a_long_one() -> bool:
        """Publish one long message after the other until the executor that joined has one."""
        publish(stack, [number := next(long)])
        more(10)
        wait_until(lambda: number in begins(stack), 30, "it to begin")
        return number in begins(stack, "host-2")

    with on(1, tmp_path, monkeypatch, "long") as (spark, stack):
        more(100)
        wait_until(lambda: doings(stack), 240, "the topology to run")
        run = run_of(stack)
        spark.join()
        wait_until(lambda: begins(stack, "host-2") or more(1), 120, "its work")
        wait_until(in_a_long_one, 60)
        more(200)
        [executor] = spark.executors("host-2")
        told = time.time()
        os.kill(executor, signal.SIGTERM)
        wait_until(
            lambda: more(3) or executor not in spark.executors("host-2"), LONG_S + 20, "its end"
        )
        left = time.time()
        # Standalone starts another executor there, which then helps too.
        here = begins(stack, "host-2", left)
        ends = [one.number for one in doings(stack) if one.does == "ends" and one.place == "host-2"]
        assert not set(here) - set(ends), "it finishes all"
        published = next(long) + next(short) - rebalanced.SHORT_FROM
        wait_until(lambda: len(begins(stack)) == published, 120, "the rest")
        wait_until(lambda: len(doings(stack)) >= 2 * published, LONG_S + 10, "the ends")
        times = {number: at for number, at in begins(stack).items() if at > told}
        log.warning(
            "began its last message %.1f s after SIGTERM, ended after %.1f s; messages of others "
            "began at most %.2f s late", max(here.values()) - told, left - told, latest_s(times),
        )  # fmt: skip
        assert max(here.values()) < told + AT_WORK_S / 3
        assert latest_s(times) < 5
        assert len(doings(stack)) == 2 * published, "each once"
        assert run_of(stack) == run, "no new run"
        none_failed(stack)

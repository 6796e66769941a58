"""Attempts whose tuples wait for a rate limit: starts, reports and deaths."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.inbox_cluster import RUN, InboxCluster
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import AsyncBolt, BasicBolt, Config, RedisUnavailableError, Topology, TopologyBuilder
from tiercel.acker.ledger import Failure
from tiercel.acker.limits import Grant
from tiercel.queues.spout import Spout
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.suspects.book import REASON

TASK = 2


class Patient(Source):
    """Takes messages again at a given time."""

    def fail(self, msg_id: Any) -> None:
        raise NotImplementedError

    def retry_later(self, msg_id: Any, seconds: float, reason: str, *, blame: bool) -> None:
        raise NotImplementedError


class Begun:
    """Records the tenants and numbers of executed tuples."""

    tuples: ClassVar[list[tuple[str, int]]] = []

    @classmethod
    def of(cls, tenant: str) -> list[int]:
        return [number for name, number in cls.tuples if name == tenant]


class Async(AsyncBolt):
    async def execute(self, tup, collector):
        Begun.tuples.append((tup["tenant"], tup["n"]))


class Plain(BasicBolt):
    threads: ClassVar[set[str]] = set()

    def execute(self, tup, collector):
        Plain.threads.add(threading.current_thread().name)
        Begun.tuples.append((tup["tenant"], tup["n"]))


@pytest.fixture(autouse=True)
def begun() -> None:
    Begun.tuples.clear()
    Plain.threads.clear()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as exits:
        yield exits


def topology(
    bolt: Any, timeout_s: float = 30.0, spout: Spout | None = None, **config: Any
) -> Topology:
    builder = TopologyBuilder("limited", config=Config(message_timeout_secs=timeout_s))
    builder.set_spout("spout", spout or Source("tenant string, n long"))
    builder.set_bolt("bolt", bolt, config=config).shuffle_grouping("spout")
    return builder.build()


kinds = pytest.mark.parametrize("bolt", [Async(), Plain()], ids=["async", "plain"])
PER_TENANT = {"rate_limit": "1/h", "rate_limit_by": "tenant"}


def rows(tenant: str, count: int, first: int = 0) -> list[list[Any]]:
    return [[tenant, number] for number in range(first, first + count)]


@kinds
def test_what_waits_holds_no_place_and_is_told(bolt: Any, closing: ExitStack) -> None:
    cluster = InboxCluster(topology(bolt, 3.0, **PER_TENANT))
    big = cluster.emit(rows("big", 50))
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    small = cluster.emit([[f"small {number}", 0] for number in range(20)])
    acked: list[int] = []
    waiting: list[int] = []

    def done() -> bool:
        attempt.turn(0.05)
        outcomes = cluster.outcomes()
        acked.extend(outcomes.acked)
        waiting.extend(outcomes.waiting)
        return len(acked) == 21 and waiting.count(big[-1]) >= 3

    wait_until(done, 20)
    assert sorted(acked) == sorted([big[0], *small])
    # Each is reported early, and again before it times out.
    assert set(waiting) == set(big[1:])
    assert Begun.of("big") == [0]


@kinds
def test_a_plain_bolt_is_executed_one_after_the_other_and_as_fast_as_its_limit(
    bolt: Any, closing: ExitStack
) -> None:
    cluster = InboxCluster(topology(bolt, rate_limit="2000/s"))
    roots = cluster.emit(rows("a", 1000))
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    acked: list[int] = []
    wait_until(
        lambda: (
            attempt.turn(0.01) is None
            or acked.extend(cluster.outcomes().acked)
            or len(acked) == 1000
        ),
        20,
    )
    assert sorted(acked) == sorted(roots)
    assert Begun.of("a") == list(range(1000))
    assert len(Plain.threads) <= 1


@kinds
def test_after_a_death_what_waited_waits_again_and_holds_no_other_one_up(
    bolt: Any, closing: ExitStack
) -> None:
    cluster = InboxCluster(topology(bolt, **PER_TENANT))
    cluster.emit(rows("big", 50))
    doomed = cluster.attempt(TASK)
    wait_until(lambda: doomed.turn(0.01))
    # Finish the step: a step that was only sealed would be repeated unchanged.
    doomed.turn(0.01)
    assert Begun.of("big") == [0]
    cluster.outcomes()
    suspicion = Suspicion(RUN, cluster.book, cluster.ledger)
    cluster.around = replace(cluster.around, suspicion=suspicion)
    successor = cluster.attempt(TASK)
    closing.callback(doomed.close)
    closing.callback(successor.close)
    small = cluster.emit([[f"small {number}", 0] for number in range(20)])
    acked: list[int] = []
    wait_until(
        lambda: (
            successor.turn(0.01) is None
            or acked.extend(cluster.outcomes().acked)
            or set(small) <= set(acked)
        ),
        20,
    )
    for _ in range(20):
        successor.turn(0.01)
    assert len(Begun.of("big")) == 1, "one per hour, also over a death"


class Died(KeyboardInterrupt):
    """The process is dead."""


class DeadlyBook(MemoryCaseBook):
    alive = True

    def note(self, *arguments: Any) -> None:
        if not self.alive:
            raise Died
        super().note(*arguments)


class Deadly(AsyncBolt):
    book: ClassVar[DeadlyBook]

    async def execute(self, tup, collector):
        if tup["n"] == 13:
            Deadly.book.alive = False
            raise Died


def test_a_tuple_that_kills_is_found_behind_a_limit_too() -> None:
    cluster = InboxCluster(topology(Deadly(), rate_limit="1000/s", concurrency=100))
    book = Deadly.book = DeadlyBook()
    roots = cluster.emit(rows("a", 30))
    acked: list[int] = []
    failed: list[Failure] = []

    def over() -> bool:
        outcomes = cluster.outcomes()
        acked.extend(outcomes.acked)
        failed.extend(outcomes.failed)
        return len(acked) + len(failed) == 30

    lives = 0
    while not over():
        lives += 1
        assert lives < 10, "it is never found"
        book.alive = True
        suspicion = Suspicion(RUN, book, cluster.ledger)
        cluster.around = replace(cluster.around, suspicion=suspicion)
        attempt = cluster.attempt(TASK)
        with suppress(Died):
            for _ in range(1_000):
                attempt.turn(0.01)
                # Without a death the process works until all tuples are done.
                if not book.alive or over():
                    break
        attempt.close()
    assert [failure.reason for failure in failed] == [REASON]
    assert [failure.root for failure in failed] == [roots[13]]


class Away:
    """Limits whose server does not respond at first."""

    def __init__(self, limits: Any, times: int) -> None:
        self._limits = limits
        self.times = times

    def take(self, task: int, wants: Mapping[bytes, int]) -> dict[bytes, Grant]:
        self.times -= 1
        if self.times >= 0:
            raise RedisUnavailableError("gone")
        taken: dict[bytes, Grant] = self._limits.take(task, wants)
        return taken

    def give_back(self, task: int, permits: Mapping[bytes, int]) -> None:
        raise RedisUnavailableError("gone again")

    def close(self) -> None:
        self._limits.close()


@kinds
def test_without_an_answer_nothing_begins_and_it_is_asked_again(
    bolt: Any, closing: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tiercel.queues.outage")
    cluster = InboxCluster(topology(bolt, rate_limit="100/s"))
    away = Away(cluster.around.limits["bolt"], 3)
    cluster.around = replace(cluster.around, limits={"bolt": away})
    cluster.emit(rows("a", 3))
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    wait_until(lambda: attempt.turn(0.05) is None or away.times == 0)
    assert Begun.tuples == []
    wait_until(lambda: attempt.turn(0.05) is None or len(Begun.tuples) == 3)
    waits = [one for one in caplog.messages if "waits for Redis" in one]
    assert len(waits) == 3
    assert all(one.startswith("gone; ") for one in waits)


def test_one_limit_for_all_takes_no_more_than_begins_in_a_minute_and_the_rest_does_not_time_out(
    closing: ExitStack,
) -> None:
    cluster = InboxCluster(topology(Async(), 0.6, rate_limit="1/min"))
    first = cluster.emit(rows("a", 1))
    second = cluster.emit(rows("a", 1, 1))
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    wait_until(lambda: attempt.turn(0.01) is None or len(Begun.tuples) == 1)
    rest = cluster.emit(rows("a", 5, 2))
    waiting: set[int] = set()
    reset: set[int] = set()

    def told() -> bool:
        attempt.turn(0.05)
        outcomes = cluster.outcomes()
        waiting.update(outcomes.waiting)
        reset.update(outcomes.reset)
        return bool(reset)

    wait_until(told, 20)
    assert Begun.of("a") == [0]
    assert waiting == set(second)
    assert reset == set(rest)
    assert not {*first} & {*waiting, *reset}


def test_the_surplus_of_a_tenant_goes_back_for_the_time_of_its_turn(closing: ExitStack) -> None:
    spout = Patient("tenant string, n long")
    limited = topology(Async(), spout=spout, rate_limit="1/s", rate_limit_by="tenant")
    cluster = InboxCluster(limited)
    roots = cluster.emit(rows("big", 100))
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    failed: list[Failure] = []
    wait_until(
        lambda: (
            attempt.turn(0.01) is None
            or failed.extend(cluster.outcomes().failed)
            or len(failed) >= 40
        ),
        20,
    )
    assert {failure.root for failure in failed} <= set(roots[60:])
    assert not any(failure.blame for failure in failed)
    seconds = sorted(failure.retry_after_s or 0 for failure in failed)
    assert seconds == pytest.approx([0.9 * (60 + number) for number in range(40)], abs=2)


def test_a_bolt_with_an_order_gives_nothing_back(closing: ExitStack) -> None:
    builder = TopologyBuilder("limited")
    builder.set_spout("spout", Patient("tenant string, n long"))
    config = {**PER_TENANT, "ordered_by": "tenant"}
    builder.set_bolt("bolt", Async(), config=config).fields_grouping("spout", "tenant")
    cluster = InboxCluster(builder.build())
    cluster.emit(rows("big", 100))
    attempt = cluster.attempt(TASK)
    closing.callback(attempt.close)
    for _ in range(20):
        attempt.turn(0.01)
    assert not cluster.outcomes().failed
    assert Begun.of("big") == [0]

"""Batches: how many tuples a batch takes, and how long it waits for more."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pytest

from tests.support.clock import Clock
from tests.support.inbox_cluster import InboxCluster, at_work
from tests.support.pump import Pump, Source
from tests.support.waiting import wait_until
from tiercel import BatchBolt, Topology, TopologyBuilder
from tiercel.acker.inbox.memory import MemoryInbox
from tiercel.spark_jobs.kinds.batch import BatchSlices
from tiercel.spark_jobs.process.host import BoltTask
from tiercel.spark_jobs.topology.bolt_settings import Batching


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def slices(clock: Clock) -> BatchSlices:
    return BatchSlices(clock, Batching(size=10, wait_s=0.2))


def look(slices: BatchSlices, waiting: int, more: int) -> int:
    """Find ``more`` tuples in the inbox while ``waiting`` others wait; return the batch size."""
    slices.wanted(waiting)
    slices.polled()
    return slices.allowed(waiting + more)


def test_a_full_batch_begins_at_once_and_no_more_is_taken_than_fits(slices) -> None:
    assert slices.wanted(0) == 10
    slices.polled()
    assert slices.wanted(7) == 3
    assert slices.allowed(7) == 0
    slices.polled()
    assert slices.wanted(10) == 0
    assert slices.allowed(10) == 10


def test_the_oldest_tuple_decides_how_long_a_batch_waits(slices, clock) -> None:
    assert look(slices, 0, 1) == 0
    assert slices.patience_s(1, 5.0) == pytest.approx(0.2)
    clock.now += 0.15
    assert look(slices, 1, 4) == 0
    assert slices.patience_s(5, 5.0) == pytest.approx(0.05)
    assert slices.patience_s(5, 0.01) == 0.01, "a tick is due, or the caller cannot wait"
    clock.now += 0.051
    assert slices.allowed(5) == 10
    assert slices.patience_s(5, 5.0) == 0.0


def test_what_is_left_over_waits_from_its_own_arrival_on(slices, clock) -> None:
    assert look(slices, 0, 6) == 0
    clock.now += 0.1
    assert look(slices, 6, 6) == 10
    slices.begin()
    slices.ended(10, 10, clock.now, committed=False)
    assert slices.wanted(2) == 8
    assert slices.patience_s(2, 5.0) == pytest.approx(0.2)
    clock.now += 0.199
    assert slices.allowed(2) == 0
    clock.now += 0.002
    assert slices.allowed(2) == 10


def test_what_came_while_the_task_was_at_work_has_waited(slices, clock) -> None:
    look(slices, 0, 10)
    slices.begin()
    clock.now += 1.0
    slices.ended(10, 10, clock.now, committed=False)
    assert slices.wanted(0) == 10
    assert slices.patience_s(0, 5.0) == 0.0, "a look that waits could not tell when they came"
    slices.polled()
    assert slices.allowed(3) == 10


def test_an_idle_task_waits_for_the_first_tuple_and_that_one_for_company(slices, clock) -> None:
    look(slices, 0, 10)
    slices.begin()
    slices.ended(10, 10, clock.now, committed=False)
    clock.now += 0.01
    assert look(slices, 0, 0) == 10, "there is nothing"
    assert slices.patience_s(0, 5.0) == 5.0
    assert slices.rest_s() == 0.0
    clock.now += 3.0
    assert look(slices, 0, 1) == 0
    assert slices.patience_s(1, 5.0) == pytest.approx(0.2)


def test_looks_keep_some_milliseconds_between_while_a_batch_comes_together(slices, clock) -> None:
    look(slices, 0, 1)
    assert slices.rest_s() == pytest.approx(0.01)
    clock.now += 0.004
    assert slices.rest_s() == pytest.approx(0.006)
    clock.now += 0.191
    assert slices.rest_s() == 0.0, "and the last one is not late"


def test_the_size_never_changes(slices, clock) -> None:
    for took_s in (0.0, 5.0, 0.0):
        slices.begin()
        clock.now += took_s
        slices.ended(10, 10, clock.now, committed=False)
    assert slices.size == 10


class Seen(BatchBolt):
    size = 4
    wait_ms = 150
    seen: ClassVar[list[tuple[float, list[Any]]]] = []

    def execute_batch(self, tuples, collector):
        self.seen.append((time.monotonic(), [tup[0] for tup in tuples]))


def topology(**config: Any) -> Topology:
    Seen.seen.clear()
    builder = TopologyBuilder("waiting")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("batch", Seen(), config=config).shuffle_grouping("spout")
    return builder.build()


def waiting_in(task: BoltTask) -> int:
    """Return the number of tuples that a task has taken and not committed."""
    attempt = task._current
    return attempt.backlog.tuples if attempt else 0


def batches() -> list[list[Any]]:
    return [batch for _, batch in Seen.seen]


def test_no_batch_is_larger_than_its_size_and_none_waits_that_is_full() -> None:
    pump = Pump(topology())
    pump.feed(*([number] for number in range(10)))
    pump.run()
    assert batches() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    pump.now = 0.149
    pump.run()
    assert len(batches()) == 2
    pump.now = 0.151
    pump.run()
    assert batches()[2:] == [[8, 9]]
    assert len(pump.acked) == 10


def test_the_component_s_config_overrides_the_class() -> None:
    pump = Pump(topology(size=7, wait_ms=0))
    pump.feed(*([number] for number in range(10)))
    pump.run()
    assert [len(batch) for batch in batches()] == [7, 3]


def test_chunks_that_come_one_by_one_become_one_batch() -> None:
    pump = Pump(topology())
    for number in range(3):
        pump.feed([number])
        pump.run()
        pump.now += 0.03
    assert batches() == []
    pump.feed([3])
    pump.run()
    assert batches() == [[0, 1, 2, 3]]


def test_a_task_at_work_waits_for_company_as_long_as_it_says() -> None:
    with at_work(topology(size=100)) as cluster:
        began = time.monotonic()
        cluster.emit([[1], [2]])
        wait_until(lambda: bool(Seen.seen), 10, "a batch that is not full")
        assert Seen.seen[0][0] - began >= 0.15
        cluster.emit([[3]])
        wait_until(lambda: len(Seen.seen) == 2, 10, "the next one")
        assert batches() == [[1, 2], [3]]
        wait_until(lambda: cluster.ledger.pending() == 0, 10, "the acks")


def test_while_tuples_trickle_in_the_inbox_is_not_asked_all_the_time(monkeypatch) -> None:
    cluster = InboxCluster(topology(size=10_000, wait_ms=300))
    take = MemoryInbox.take
    looks = []

    def with_another(self, *given, **options):
        looks.append(given)
        if not Seen.seen:
            cluster.emit([[len(looks)]])
        return take(self, *given, **options)

    monkeypatch.setattr(MemoryInbox, "take", with_another)
    cluster.start()
    try:
        wait_until(lambda: bool(Seen.seen), 10, "a batch")
    finally:
        cluster.stop()
    assert 1 < len(batches()[0]) < 60, "one look in ten milliseconds"


def test_a_run_that_ends_gives_what_waits_for_company_back_at_once() -> None:
    with at_work(topology(wait_ms=20_000)) as cluster:
        cluster.emit([[1], [2]])
        [(bolt_task, _)] = cluster.threads.values()
        wait_until(lambda: waiting_in(bolt_task) == 2, 10, "both to be taken")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert batches() == []
    assert cluster.inboxes.figures([2])[2].tuples == 2, "they wait for the next run"
    assert cluster.ledger.pending() == 2

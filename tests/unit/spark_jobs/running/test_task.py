"""Bolt tasks on inboxes in memory: which tuples are acked, fail or wait."""

from __future__ import annotations

import threading
from collections import Counter
from typing import ClassVar

import pytest

from tests.support.inbox_cluster import at_work
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, Topology, TopologyBuilder


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup["line"].split():
            collector.emit([word])


class Count(BasicBolt):
    totals: ClassVar[Counter[str]] = Counter()
    lock: ClassVar[threading.Lock] = threading.Lock()

    def execute(self, tup, collector):
        with self.lock:
            self.totals[tup["word"]] += 1


class Wait(BasicBolt):
    """Blocks in the call for one number until the test releases it."""

    free: ClassVar[threading.Event] = threading.Event()

    def execute(self, tup, collector):
        if tup["number"] == 0:
            self.free.wait(30)


def word_count() -> Topology:
    builder = TopologyBuilder("word-count")
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("split", Split(), parallelism=3).shuffle_grouping("spout")
    builder.set_bolt("count", Count(), parallelism=4).fields_grouping("split", "word")
    return builder.build()


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    Count.totals.clear()
    Wait.free.clear()


def collect_acked(cluster, count: int) -> list[int]:
    acked: list[int] = []

    def enough() -> bool:
        outcomes = cluster.outcomes(0.05)
        acked.extend(outcomes.acked)
        assert not outcomes.failed, outcomes.failed
        return len(acked) >= count

    wait_until(enough, timeout=30)
    return acked


def test_every_line_is_acked_and_every_word_counted_once() -> None:
    lines = [f"the falcon {number} and the tiercel {number % 7}" for number in range(2_000)]
    with at_work(word_count()) as cluster:
        roots = cluster.emit([[line] for line in lines])
        assert sorted(collect_acked(cluster, len(roots))) == sorted(roots)
        assert Count.totals == Counter(word for line in lines for word in line.split())
        wait_until(
            lambda: all(
                one.tuples == 0 for one in cluster.inboxes.figures(cluster.bolt_tasks).values()
            )
        )


def test_a_slow_tuple_delays_only_those_of_its_own_task() -> None:
    builder = TopologyBuilder("slow")
    builder.set_spout("spout", Source("number long"))
    builder.set_bolt("wait", Wait(), parallelism=2).fields_grouping("spout", "number")
    with at_work(builder.build()) as cluster:
        [slow] = cluster.emit([[0]])
        others = []
        for number in range(1, 41):
            others += cluster.emit([[number]])
        acked = collect_acked(cluster, 15)
        assert slow not in acked
        Wait.free.set()

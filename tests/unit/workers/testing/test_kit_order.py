"""Order per key in the test kit: a failed tuple comes before its successors, on simulated time."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from tiercel import (
    AsyncBolt,
    BasicBolt,
    Config,
    QueueSpout,
    RetryLater,
    RetryPolicy,
    Spout,
    TopologyBuilder,
)
from tiercel.testing import FeederSpout, LocalCluster


class Replaying(Spout):
    """Emits rows; failed and returned rows come again after the others."""

    output_fields = "key string, number long"
    rows: ClassVar[list[tuple[str, int]]]

    def open(self, config, context):
        self.waiting = deque(self.rows)
        self.released: list[Any] = []

    def next_tuple(self, collector):
        if self.waiting:
            row = self.waiting.popleft()
            collector.emit(list(row), row)

    def fail(self, msg_id, reason=""):
        self.waiting.append(msg_id)


class GivenBack(Replaying):
    def release(self, msg_id):
        self.released.append(msg_id)
        self.waiting.append(msg_id)


class Failing(BasicBolt):
    output_fields = "key string, number long"
    # Number of failures of each row.
    fails: ClassVar[dict[Any, int]]

    def execute(self, tup, collector):
        fail_some(self.fails, tup)
        collector.emit(tup.values)


class Sleeping(AsyncBolt):
    """Sleeps longest for the first numbers."""

    output_fields = "key string, number long"
    fails: ClassVar[dict[Any, int]]

    async def execute(self, tup, collector):
        await asyncio.sleep((10 - tup["number"]) / 10)
        fail_some(self.fails, tup)
        collector.emit(tup.values)


def fail_some(fails, tup):
    row = tuple(tup.values)
    if fails.get(row, 0):
        fails[row] -= 1
        raise ValueError("not yet")


def topology(spout: Spout, bolt: Any, **config: Any) -> Any:
    builder = TopologyBuilder("order", Config(message_timeout_secs=60))
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", bolt, config={"ordered_by": "key", **config}).fields_grouping(
        "spout", "key"
    )
    return builder.build()


def of(key: str, rows: list[list[Any]]) -> list[int]:
    return [number for each, number in rows if each == key]


@pytest.mark.parametrize(
    ("bolt", "config"), [(Failing(), {}), (Failing(), {"threads": 4}), (Sleeping(), {})]
)
def test_a_tuple_that_fails_comes_before_those_that_are_there_already(bolt, config) -> None:
    GivenBack.rows = [(key, number) for number in range(5) for key in "ab"]
    Failing.fails = Sleeping.fails = {("a", 1): 3, ("b", 0): 1, ("b", 4): 1}
    with LocalCluster(topology(GivenBack(), bolt, **config)) as cluster:
        cluster.advance_time(50)
        rows = cluster.read_tuples("bolt")
        assert (of("a", rows), of("b", rows)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
        assert sorted(cluster.acked("spout")) == sorted(GivenBack.rows)


def test_calls_of_other_keys_go_at_once() -> None:
    GivenBack.rows = [(key, number) for number in (8, 9) for key in "abcd"]
    Sleeping.fails = {}
    with LocalCluster(topology(GivenBack(), Sleeping())) as cluster:
        cluster.advance_time(0.2)
        assert len(cluster.acked("spout")) == 4
        cluster.advance_time(0.1)
        assert len(cluster.acked("spout")) == 8


def test_a_tuple_that_fails_is_tried_again_by_its_task_and_its_spout_hears_of_nothing() -> None:
    GivenBack.rows = [("a", number) for number in range(6)]
    Failing.fails = {("a", 1): 5}
    with LocalCluster(topology(GivenBack(), Failing())) as cluster:
        cluster.run_until_idle()
        assert cluster.acked("spout") == [("a", 0)]
        cluster.advance_time(6)
        assert of("a", cluster.read_tuples("bolt")) == [0]
        cluster.advance_time(1)
        assert of("a", cluster.read_tuples("bolt")) == list(range(6))
        assert (cluster.failed("spout"), cluster.spout("spout").released) == ([], [])


def test_a_tuple_that_always_fails_is_rejected_and_the_others_go_on(caplog) -> None:
    feeder = FeederSpout("key string, number long")
    for number in range(3):
        feeder.feed(["a", number], number)
    Failing.fails = {("a", 0): 100}
    with LocalCluster(topology(feeder, Failing())) as cluster:
        cluster.advance_time(150)
        assert (cluster.failed("spout"), cluster.acked("spout")) == ([], [])
        assert cluster.pending("spout") == 3
        cluster.advance_time(10)
        assert (cluster.failed("spout"), cluster.acked("spout")) == ([0], [1, 2])
    assert "go on without it" in caplog.text


def test_a_run_to_the_end_waits_for_a_tuple_that_always_fails() -> None:
    feeder = FeederSpout("key string, number long")
    feeder.feed(["a", 0], 0)
    feeder.feed(["a", 1], 1)
    Failing.fails = {("a", 0): 100}
    with LocalCluster(topology(feeder, Failing())) as cluster:
        cluster.run_to_the_end()
        assert (cluster.rejected("spout"), cluster.acked("spout")) == ([0], [1])


def test_a_tuple_is_tried_as_often_and_as_soon_as_its_queue_spout_says() -> None:
    second = timedelta(seconds=1)
    spout = QueueSpout(
        "orders",
        "key string, number long",
        delivery_limit=3,
        retry=RetryPolicy(first=second, longest=second),
    )
    Failing.fails = {("a", 0): 100}
    with LocalCluster(topology(spout, Failing())) as cluster:
        cluster.feed_body(b'{"key": "a", "number": 0}')
        cluster.advance_time(2.9)
        assert cluster.pending("spout") == 1
        cluster.advance_time(0.1)
        [letter] = cluster.dead_letters()
        assert "failed 4 times: ValueError: not yet" in letter.reason


class Later(BasicBolt):
    output_fields = "key string, number long"

    def execute(self, tup, collector):
        if tup["number"] == 0 and not self.asked:
            self.asked = True
            raise RetryLater(40)
        collector.emit(tup.values)

    def prepare(self, config, context):
        self.asked = False


def test_who_asks_for_a_tuple_later_gives_up_its_place() -> None:
    feeder = FeederSpout("key string, number long")
    for number in range(3):
        feeder.feed(["a", number], number)
    with LocalCluster(topology(feeder, Later())) as cluster:
        cluster.advance_time(1)
        assert cluster.acked("spout") == [1, 2]
        cluster.advance_time(40)
        assert cluster.acked("spout") == [1, 2, 0]


def test_what_is_in_no_tree_is_not_waited_for() -> None:
    feeder = FeederSpout("key string, number long")
    for number in range(3):
        feeder.feed(["a", number])
    Failing.fails = {("a", 0): 1}
    with LocalCluster(topology(feeder, Failing())) as cluster:
        cluster.run_until_idle()
        assert of("a", cluster.read_tuples("bolt")) == [1, 2]

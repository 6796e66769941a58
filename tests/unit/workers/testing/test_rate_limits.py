"""Rate limits on simulated time: a limit of one per hour takes milliseconds."""

import asyncio
import time
from collections import deque
from typing import ClassVar

import pytest

from tiercel import AsyncBolt, BasicBolt, Config, Spout, TopologyBuilder
from tiercel.testing import FeederSpout, LocalCluster


class Waits(AsyncBolt):
    async def execute(self, tup, collector):
        await asyncio.sleep(0)


class Plain(BasicBolt):
    def execute(self, tup, collector):
        pass


KINDS = pytest.mark.parametrize(
    ("bolt", "config"),
    [(Waits(), {}), (Plain(), {}), (Plain(), {"threads": 4})],
    ids=["async", "plain", "threads"],
)


def topology(bolt, settings, *, parallelism=1, config=None):
    builder = TopologyBuilder("t", config=config)
    feeder = FeederSpout(fields="tenant string, x long")
    builder.set_spout("jobs", feeder)
    builder.set_bolt("bolt", bolt, parallelism, config=settings).shuffle_grouping("jobs")
    return builder.build(), feeder


def feed(feeder, tenant, count):
    for x in range(count):
        feeder.feed([tenant, x], f"{tenant}{x}")


@KINDS
def test_one_per_hour_begins_once_per_hour_and_nothing_times_out(bolt, config):
    built, feeder = topology(bolt, {"rate_limit": "1/h", **config})
    began = time.monotonic()
    with LocalCluster(built) as cluster:
        feed(feeder, "a", 1)
        cluster.run_until_idle()
        assert cluster.acked("jobs") == ["a0"]
        feeder.feed(["a", 1], "next")
        cluster.advance_time(3598)
        assert cluster.acked("jobs") == ["a0"]
        cluster.advance_time(3)
        assert cluster.acked("jobs") == ["a0", "next"]
        assert cluster.failed("jobs") == []
        assert cluster.retried_later("jobs") == []
    assert time.monotonic() - began < 5


@KINDS
@pytest.mark.parametrize("parallelism", [1, 4])
def test_ten_per_second_is_ten_per_second_over_all_tasks(bolt, config, parallelism):
    built, feeder = topology(bolt, {"rate_limit": "10/s", **config}, parallelism=parallelism)
    with LocalCluster(built) as cluster:
        feed(feeder, "a", 400)
        cluster.advance_time(0)
        first = len(cluster.acked("jobs"))
        assert first <= 2
        cluster.advance_time(10)
        assert 98 <= len(cluster.acked("jobs")) - first <= 102
        cluster.advance_time(35)
        assert len(cluster.acked("jobs")) == 400
        assert len(set(cluster.acked("jobs"))) == 400
        assert cluster.failed("jobs") == []


@KINDS
def test_each_tenant_has_a_limit_of_its_own(bolt, config):
    built, feeder = topology(bolt, {"rate_limit": "1/min", "rate_limit_by": "tenant", **config})
    with LocalCluster(built) as cluster:
        for tenant in "abc":
            feed(feeder, tenant, 2)
        cluster.run_until_idle()
        assert sorted(cluster.acked("jobs")) == ["a0", "b0", "c0"]
        cluster.advance_time(61)
        assert len(cluster.acked("jobs")) == 6
        assert cluster.failed("jobs") == []


def test_tuples_without_a_tenant_share_one_limit():
    built, feeder = topology(Plain(), {"rate_limit": "1/min", "rate_limit_by": "tenant"})
    with LocalCluster(built) as cluster:
        feed(feeder, None, 2)
        feed(feeder, "", 1)
        cluster.run_until_idle()
        assert sorted(cluster.acked("jobs")) == ["0", "None0"]
        cluster.advance_time(61)
        assert sorted(cluster.acked("jobs")) == ["0", "None0", "None1"]


@KINDS
def test_one_tenant_with_a_thousand_that_wait_holds_no_other_one_up(bolt, config):
    built, feeder = topology(
        bolt, {"rate_limit": "1/s", "rate_limit_by": "tenant", **config}, parallelism=2,
        config=Config(max_spout_pending=100),
    )  # fmt: skip
    with LocalCluster(built) as cluster:
        feed(feeder, "big", 1000)
        cluster.advance_time(5)
        for number in range(20):
            feeder.feed([f"small {number}", 0], f"small {number}")
        cluster.run_until_idle()
        others = [each for each in cluster.acked("jobs") if str(each).startswith("small")]
        assert len(others) == 20
        assert cluster.failed("jobs") == []
        # A message that would not begin within about a minute waits at the broker.
        assert cluster.pending("jobs") <= 2 * 61
        cluster.advance_time(200)
        big = [each for each in cluster.acked("jobs") if str(each).startswith("big")]
        assert 0.9 * 205 <= len(big) <= 207
        assert cluster.failed("jobs") == []


def test_all_of_a_tenant_are_executed_in_the_end_and_once():
    built, feeder = topology(Plain(), {"rate_limit": "1/s", "rate_limit_by": "tenant"})
    with LocalCluster(built) as cluster:
        feed(feeder, "big", 400)
        cluster.advance_time(480)
        assert len(cluster.acked("jobs")) == 400
        assert len(set(cluster.acked("jobs"))) == 400
        assert 340 <= len(cluster.retried_later("jobs")) < 1000


def test_slow_calls_do_not_save_permits_up():
    class Slow(AsyncBolt):
        began: ClassVar[list[float]] = []

        async def execute(self, tup, collector):
            Slow.began.append(asyncio.get_running_loop().time())
            await asyncio.sleep(5)

    built, feeder = topology(Slow(), {"rate_limit": "1/s", "concurrency": 2})
    with LocalCluster(built) as cluster:
        feed(feeder, "a", 6)
        cluster.advance_time(30)
        assert len(cluster.acked("jobs")) == 6
        began = Slow.began
        assert all(began[at] - began[at - 2] >= 5 for at in range(2, 6)), "two places"
        assert all(began[at] - began[at - 1] >= 0.89 for at in range(1, 6)), "one per second"


def test_ticks_pass_the_limit():
    class Ticked(BasicBolt):
        ticks = 0

        def execute(self, tup, collector):
            Ticked.ticks += tup.is_tick

    built, feeder = topology(Ticked(), {"rate_limit": "1/h", "tick_tuple_freq_secs": 1})
    with LocalCluster(built) as cluster:
        feed(feeder, "a", 3)
        cluster.advance_time(10)
        assert Ticked.ticks == 10


def test_untracked_tuples_wait_and_are_not_lost():
    class Seen(BasicBolt):
        seen = 0

        def execute(self, tup, collector):
            Seen.seen += 1

    built, feeder = topology(
        Seen(), {"rate_limit": "1/s", "rate_limit_by": "tenant"}, config=Config(ackers=0)
    )
    with LocalCluster(built) as cluster:
        for x in range(200):
            feeder.feed(["big", x])
        cluster.advance_time(199)
        assert 198 <= Seen.seen <= 200
        cluster.advance_time(3)
        assert Seen.seen == 200


class Again(Spout):
    """Emits pairs in order; failed or returned ones come again behind the others."""

    output_fields = "tenant string, x long"

    def open(self, config, context):
        self.waiting = deque([(tenant, x) for x in range(20) for tenant in "ab"])

    def next_tuple(self, collector):
        if self.waiting:
            pair = self.waiting.popleft()
            collector.emit(list(pair), pair)

    def fail(self, msg_id, reason=""):
        self.waiting.append(msg_id)

    def release(self, msg_id):
        self.waiting.append(msg_id)


@pytest.mark.parametrize("kind", [AsyncBolt, BasicBolt], ids=["async", "plain"])
@pytest.mark.parametrize("by", [{}, {"rate_limit_by": "tenant"}], ids=["all", "tenant"])
def test_an_order_holds_behind_a_limit_also_over_failures(kind, by):
    done: list[tuple[str, int]] = []
    failures = {("a", 3): 2, ("b", 0): 1, ("a", 10): 1}

    def execute(tup):
        pair = tuple(tup.values)
        if failures.get(pair):
            failures[pair] -= 1
            raise ValueError("not yet")
        done.append(pair)

    class Ordered(kind):
        if kind is AsyncBolt:

            async def execute(self, tup, collector):
                execute(tup)
        else:

            def execute(self, tup, collector):
                execute(tup)

    builder = TopologyBuilder("t")
    builder.set_spout("jobs", Again())
    config = {"ordered_by": "tenant", "rate_limit": "2/s", **by}
    builder.set_bolt("bolt", Ordered(), config=config).fields_grouping("jobs", "tenant")
    with LocalCluster(builder.build()) as cluster:
        cluster.advance_time(120)
        assert len(cluster.acked("jobs")) == 40
    for tenant in "ab":
        assert [x for one, x in done if one == tenant] == list(range(20))
    assert not any(failures.values())

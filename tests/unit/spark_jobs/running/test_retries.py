"""A task of a bolt with ``Retry`` executes failed tuples again, in place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tenacity import wait_random

from tests.support.pump import Pump, Source, killed_after
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Config,
    Reject,
    Retry,
    RetryLater,
    StatefulBolt,
    Topology,
    TopologyBuilder,
)
from tiercel.acker.ids import line_of
from tiercel.acker.ledger import Failure
from tiercel.acker.limits import MemoryLimits
from tiercel.acker.metrics.contract import total_of
from tiercel.spark_jobs.kinds.calls.flight import MOST_HELD_BACK
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.topology.bolt_settings import rates_of
from tiercel.testing import FeederSpout, LocalCluster
from tiercel.workers.testing.engine import SimulatedClock

WAIT_S = 20.0
TUPLES = 12


class BusyError(Exception):
    """The service is busy."""


class Service:
    """Prices numbers. The first calls for a multiple of three fail."""

    failures: ClassVar[int]
    calls: ClassVar[Counter[int]]

    def price(self, number: int) -> int:
        self.calls[number] += 1
        if number % 3 == 0 and self.calls[number] <= self.failures:
            raise BusyError(f"call {self.calls[number]} for {number}")
        return 10 * number


@pytest.fixture(autouse=True)
def service() -> type[Service]:
    Service.failures = 2
    Service.calls = Counter()
    return Service


class Basic(Service, BasicBolt):
    output_fields = "price long"

    def execute(self, tup, collector):
        collector.emit([-1 if tup["number"] % 3 == 0 and self.calls[tup["number"]] < 2 else 0])
        collector.emit([self.price(tup["number"])])


class Async(Service, AsyncBolt):
    output_fields = "price long"

    async def execute(self, tup, collector):
        collector.emit([0])
        await asyncio.sleep(0)
        collector.emit([self.price(tup["number"])])


class Rich(Service, Bolt):
    output_fields = "price long"

    def execute(self, tup, collector):
        collector.emit([0], tup)
        try:
            collector.emit([self.price(tup["number"])], tup)
        except BusyError as error:
            collector.fail(tup, error)
        else:
            collector.ack(tup)


class Batches(Service, BatchBolt):
    output_fields = "price long"
    size = 50
    wait_ms = 10

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            collector.emit([0], tup)
            try:
                collector.emit([self.price(tup["number"])], tup)
            except BusyError as error:
                collector.fail(tup, error)


class Split(Service, BatchBolt):
    output_fields = "price long"
    on_error = "split"
    wait_ms = 10

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            collector.emit([0], tup)
        # A call that raises is repeated with halves; its emissions count only if it succeeds.
        if len(tuples) > 1 and any(tup["number"] % 3 == 0 for tup in tuples):
            raise BusyError
        for tup in tuples:
            collector.emit([self.price(tup["number"])], tup)


class Stateful(Service, StatefulBolt):
    output_fields = "price long"
    state_types: ClassVar[Any] = {}

    def execute(self, tup, collector):
        self.state.increment(tup["number"])
        collector.emit([self.state.get(tup["number"]) - 1])
        collector.emit([self.price(tup["number"])])


class Arrow(Service, ArrowBolt):
    output_fields = "price long"

    def execute(self, batch, collector):
        numbers = batch.column("number").to_pylist()
        if len(numbers) > 1 and any(number % 3 == 0 for number in numbers):
            raise BusyError
        prices = [[0, self.price(number)] for number in numbers]
        anchors = [row for row, _ in enumerate(prices) for _ in range(2)]
        flat = [price for both in prices for price in both]
        collector.emit(pa.record_batch({"price": pa.array(flat)}), pa.array(anchors))


KINDS: list[Any] = [
    pytest.param(Basic, {}, id="basic"),
    pytest.param(Basic, {"threads": 4}, id="threads"),
    pytest.param(Basic, {"rate_limit": 1000}, id="limited"),
    pytest.param(Async, {}, id="async"),
    pytest.param(Async, {"rate_limit": 1000, "rate_limit_by": "number"}, id="async-limited"),
    pytest.param(Rich, {}, id="bolt"),
    pytest.param(Batches, {}, id="batch"),
    pytest.param(Split, {}, id="batch-split"),
    pytest.param(Stateful, {}, id="stateful"),
    pytest.param(Arrow, {}, id="arrow"),
    pytest.param(Basic, {"ordered_by": "number"}, id="ordered"),
    pytest.param(Async, {"ordered_by": "number"}, id="async-ordered"),
    pytest.param(Batches, {"ordered_by": "number"}, id="batch-ordered"),
    pytest.param(Arrow, {"ordered_by": "number"}, id="arrow-ordered"),
]
each_kind = pytest.mark.parametrize(("bolt", "config"), KINDS)
TWICE = Retry(attempts=3, wait=WAIT_S, on=BusyError)


def topology(bolt: Any, spout: Any, config: Any = None, **settings: Any) -> Topology:
    builder = TopologyBuilder("retries", Config(**settings))
    builder.set_spout("numbers", spout)
    declared = builder.set_bolt("price", bolt, config={"retry": TWICE, **(config or {})})
    if config and "ordered_by" in config:
        declared.fields_grouping("numbers", "number")
    else:
        declared.shuffle_grouping("numbers")
    builder.set_bolt("sink", Sink()).shuffle_grouping("price")
    return builder.build()


class Sink(BasicBolt):
    def execute(self, tup, collector):
        pass


@pytest.fixture
def running() -> Iterator[Callable[..., tuple[LocalCluster, FeederSpout]]]:
    """``running(bolt, config)`` returns a cluster that has done all it can with the numbers."""
    clusters = []

    def start(bolt: Any, config: Any = None, **settings: Any) -> tuple[LocalCluster, FeederSpout]:
        feeder = FeederSpout(fields="number long")
        cluster = LocalCluster(topology(bolt, feeder, config, **settings))
        clusters.append(cluster)
        cluster.__enter__()
        for number in range(TUPLES):
            feeder.feed([number], number)
        cluster.run_until_idle()
        return cluster, feeder

    yield start
    for cluster in clusters:
        cluster.close()


GOOD = [number for number in range(TUPLES) if number % 3]
BAD = [number for number in range(TUPLES) if not number % 3]


def prices(cluster: LocalCluster) -> list[int]:
    return sorted(price for [price] in cluster.read_tuples("price") if price > 0)


@each_kind
def test_a_tuple_that_fails_is_executed_again_and_emits_once(running, bolt, config) -> None:
    cluster, _ = running(bolt(), config)
    assert sorted(cluster.acked("numbers")) == GOOD, "the others go on meanwhile"
    assert prices(cluster) == [10 * number for number in GOOD]
    cluster.advance_time(WAIT_S - 0.1)
    assert sorted(cluster.acked("numbers")) == GOOD
    for _ in range(2):
        cluster.advance_time(WAIT_S + 0.2)
    assert sorted(cluster.acked("numbers")) == list(range(TUPLES))
    assert cluster.failed("numbers") == []
    assert prices(cluster) == [10 * number for number in range(1, TUPLES)]
    assert len(cluster.read_tuples("price")) == 2 * TUPLES
    assert {number: calls for number, calls in Service.calls.items() if calls > 1} == dict.fromkeys(
        BAD, 3
    )


@each_kind
def test_after_the_last_attempt_it_fails_with_the_reason(running, service, bolt, config) -> None:
    service.failures = 3
    cluster, _ = running(bolt(), config)
    for _ in range(2):
        assert cluster.failed("numbers") == []
        cluster.advance_time(WAIT_S + 0.2)
    if "ordered_by" in config:
        # The tuple now fails as in any ordered bolt: the next attempts follow after its back-off.
        cluster.advance_time(1.0)
        assert (cluster.failed("numbers"), len(cluster.acked("numbers"))) == ([], TUPLES)
        return
    assert sorted(cluster.failed("numbers")) == BAD
    for reason in cluster.fail_reasons("numbers"):
        assert "after 3 attempts: BusyError" in reason
    assert sorted(cluster.acked("numbers")) == GOOD


def test_the_message_timeout_begins_anew_with_each_attempt(running) -> None:
    cluster, _ = running(Basic(), message_timeout_secs=WAIT_S / 2)
    cluster.advance_time(2 * WAIT_S + 1)
    assert (len(cluster.acked("numbers")), cluster.failed("numbers")) == (TUPLES, [])


class Chooses(BasicBolt):
    """Raises the error that its tuple names."""

    output_fields = "price long"

    raises: ClassVar[Exception]

    def execute(self, tup, collector):
        if tup["number"] == 1:
            raise self.raises


@pytest.mark.parametrize(
    "error", [ValueError("no"), Reject("never"), RetryLater(60, "later"), TimeoutError("no")]
)
def test_other_errors_and_verdicts_are_not_retried(running, error) -> None:
    Chooses.raises = error
    cluster, _ = running(Chooses())
    assert cluster.pending("numbers") == 0
    told = {*cluster.rejected("numbers"), *dict(cluster.retried_later("numbers"))}
    assert told | {*cluster.failed("numbers")} == {1}


class FailsWithText(Bolt):
    output_fields = "price long"

    def execute(self, tup, collector):
        if tup["number"] == 1:
            collector.fail(tup, "not now")
        else:
            collector.ack(tup)


def test_a_tuple_that_the_bolt_fails_with_a_text_is_not_retried(running) -> None:
    cluster, _ = running(FailsWithText())
    assert cluster.failed("numbers") == [1]


class Flushes(Service, BasicBolt):
    """Fails all tuples of the first step."""

    output_fields = "price long"

    def flush(self, collector):
        self.price(0)

    def execute(self, tup, collector):
        pass


def test_a_step_whose_flush_raises_is_retried(running) -> None:
    cluster, _ = running(Flushes())
    assert cluster.acked("numbers") == []
    cluster.advance_time(2 * WAIT_S + 1)
    assert (len(cluster.acked("numbers")), cluster.failed("numbers")) == (TUPLES, [])


class WholeBatch(Service, BatchBolt):
    output_fields = "price long"
    wait_ms = 10
    sizes: ClassVar[list[int]]

    def execute_batch(self, tuples, collector):
        self.sizes.append(len(tuples))
        self.price(0)


def test_a_batch_that_raises_is_retried_as_a_batch(running) -> None:
    WholeBatch.sizes = []
    jitter = Retry(attempts=3, wait=wait_random(1, 9), on=BusyError)
    cluster, _ = running(WholeBatch(), {"retry": jitter})
    cluster.advance_time(2 * WAIT_S)
    assert WholeBatch.sizes == [TUPLES] * 3
    assert len(cluster.acked("numbers")) == TUPLES


def test_a_state_keeps_nothing_of_an_attempt_that_failed(running) -> None:
    cluster, _ = running(Stateful())
    cluster.advance_time(2 * WAIT_S + 1)
    assert cluster.state("price") == dict.fromkeys(range(TUPLES), 1)


def test_retries_are_counted_apart_from_failures(running) -> None:
    cluster, _ = running(Basic())
    cluster.advance_time(2 * WAIT_S + 1)
    found = total_of(cluster._running_engine().metrics.totals(), "price")
    assert (found["retried"], found["failed"]) == (2 * len(BAD), 0)
    assert found["acked"] == TUPLES
    assert found["executed"] == TUPLES + 2 * len(BAD)


# -- with other processes --------------------------------------------------------------------------


def pumped(bolt: Any, config: Any = None, **settings: Any) -> tuple[Pump, SimulatedClock]:
    clock = SimulatedClock()
    made = topology(bolt, Source("number long"), config, **settings)
    pump = Pump(made, simulated=clock)
    ATTEMPTS.extend(pump.attempts.values())
    return pump, clock


ATTEMPTS: list[Attempt] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close all attempts, including those that were taken over."""
    yield
    while ATTEMPTS:
        ATTEMPTS.pop().close()


def take_over(pump: Pump) -> None:
    pump.take_over()
    ATTEMPTS.extend(pump.attempts.values())


def later(pump: Pump, clock: SimulatedClock, seconds: float = WAIT_S) -> None:
    clock.move_to(clock.after(seconds))
    run(pump)


def run(pump: Pump) -> None:
    """Work until idle, and execute batches that are not full."""
    pump.run()
    pump.now += 1.0
    pump.run()


def work(pump: Pump) -> None:
    """Let the tasks of the bolt work, as in ``run``."""
    for _ in range(2):
        pump.work(*pump.topology.task_ids("price"))
        pump.now += 1.0


WITHOUT_ORDER = [
    kind for kind in KINDS if "limited" not in str(kind.id) and "ordered" not in str(kind.id)
]


@pytest.mark.parametrize(("bolt", "config"), WITHOUT_ORDER)
def test_a_process_that_dies_meanwhile_starts_the_tuple_again(bolt, config) -> None:
    pump, clock = pumped(bolt(), config)
    roots = pump.feed(*([number] for number in range(TUPLES)))
    run(pump)
    assert len(pump.acked) == len(GOOD)
    take_over(pump)
    run(pump)
    # The new process executed them at once, and counts from one.
    assert Service.calls[0] == 2
    Service.failures = 3
    later(pump, clock)
    later(pump, clock)
    assert (sorted(pump.acked), pump.failed) == (sorted(roots), {})


@pytest.mark.parametrize(("bolt", "config"), WITHOUT_ORDER)
def test_a_death_between_any_two_effects_loses_and_doubles_nothing(bolt, config) -> None:
    for effects in range(60):
        Service.calls.clear()
        Service.failures = 1
        pump, clock = pumped(bolt(), config)
        seen: list[int] = []
        roots = pump.feed(*([number] for number in range(1, TUPLES)))
        pump.send()
        ended = False
        with killed_after(effects):
            work(pump)
            clock.move_to(clock.after(WAIT_S))
            work(pump)
            ended = True
        take_over(pump)
        for _ in range(3):
            work(pump)
            clock.move_to(clock.after(WAIT_S))
        seen = [row[0] for row in pump.rows("sink") if row[0] > 0]
        run(pump)
        done = len(pump.acked) + len(pump.failed)
        assert done == len(roots), f"after {effects} effects"
        assert len(seen) == len(set(seen)), f"after {effects} effects"
        while ATTEMPTS:
            ATTEMPTS.pop().close()
        if ended:
            assert sorted(seen) == [10 * number for number in range(1, TUPLES)]
            assert not pump.failed
            return
    raise AssertionError("it never came to its end")


def test_tuples_of_a_limited_bolt_go_on_in_another_process(monkeypatch) -> None:
    clock = SimulatedClock()
    made = topology(Basic(), Source("number long"), {"rate_limit": 1000})
    limits = {bolt: MemoryLimits(rate, clock) for bolt, rate in rates_of(made).items()}
    monkeypatch.setattr("tests.support.pump.Around", partial(Around, limits=limits))
    pump = Pump(made, simulated=clock)
    ATTEMPTS.extend(pump.attempts.values())
    roots = pump.feed(*([number] for number in range(TUPLES)))
    for _ in range(5):
        later(pump, clock, 0.1)
    assert len(pump.acked) == len(GOOD)
    take_over(pump)
    for _ in range(5):
        later(pump, clock, 0.1)
    assert Service.calls[0] == 2
    later(pump, clock)
    for _ in range(5):
        later(pump, clock, 0.1)
    assert (sorted(pump.acked), pump.failed) == (sorted(roots), {})


def test_untracked_tuples_are_retried() -> None:
    pump, clock = pumped(Basic(), ackers=0)
    pump.feed(*([number] for number in range(TUPLES)), tracked=False)
    pump.run()
    later(pump, clock)
    later(pump, clock)
    assert Service.calls[3] == 3
    assert pump.waiting() == 0


def test_an_attempt_that_was_retried_is_not_given_back_to_the_line() -> None:
    """In the line another task would execute the tuple at once."""
    pump, _ = pumped(Basic())
    pump.feed(*([number] for number in (1, 3)))
    pump.run()
    [task] = pump.topology.task_ids("price")
    backlog = pump.attempts[task].backlog
    assert (backlog.tuples, backlog.entries) == (0, 1)
    assert backlog.rests([]) == []
    assert line_of([task]) not in pump.inboxes.drain("run") or pump.waiting() == 1


class AlwaysBusy(Service, BasicBolt):
    output_fields = "price long"

    def execute(self, tup, collector):
        if tup["number"] < MOST_HELD_BACK + 100:
            raise BusyError
        self.calls[tup["number"]] += 1


@pytest.mark.parametrize("config", [{}, {"threads": 16}])
def test_a_task_with_many_waiting_tuples_takes_no_more_until_some_are_due(config) -> None:
    last = MOST_HELD_BACK + 5_000
    pump, clock = pumped(AlwaysBusy(), config, message_timeout_secs=3600)
    pump.feed(*([number] for number in range(MOST_HELD_BACK + 100)))
    pump.run()
    pump.feed(*([last + number] for number in range(2_000)))
    pump.run()
    left = pump.waiting()
    assert left >= MOST_HELD_BACK
    assert sum(Service.calls.values()) < 2_000
    for _ in range(6):
        later(pump, clock)
    assert sum(Service.calls.values()) == 2_000
    assert len(pump.failed) == MOST_HELD_BACK + 100
    assert pump.waiting() == 0


def test_the_spouts_are_told_who_waits(monkeypatch) -> None:
    pump, clock = pumped(Basic())
    told: list[tuple[int, bool]] = []

    def reset(roots: Any, *, waiting: bool = False) -> None:
        told.extend((root, waiting) for root in roots)

    monkeypatch.setattr(pump.ledger, "reset_timeout", reset)
    roots = pump.feed([3], [4])
    pump.run()
    for _ in range(2):
        later(pump, clock, 0.2)
    assert told == [(roots[0], True)]
    later(pump, clock, WAIT_S - 0.4)
    assert told[-1] == (roots[0], False), "the timeout begins anew with the attempt"


def test_an_attempt_says_how_many_wait() -> None:
    for config in ({}, {"ordered_by": "number"}):
        Service.calls.clear()
        pump, clock = pumped(Basic(), config)
        pump.feed(*([number] for number in range(TUPLES)))
        pump.run()
        [task] = pump.topology.task_ids("price")
        assert pump.attempts[task].waiting == len(BAD)
        later(pump, clock)
        later(pump, clock)
        assert pump.attempts[task].waiting == 0


def test_a_reason_from_the_last_attempt_reaches_the_ledger() -> None:
    pump, clock = pumped(Basic())
    Service.failures = 9
    failures: list[Failure] = []
    [root] = pump.feed([3])
    pump.run()
    later(pump, clock)
    later(pump, clock)
    assert not failures
    assert pump.failed == {root: "price: after 3 attempts: BusyError: call 3 for 3"}


def test_a_wait_that_raises_is_an_ordinary_failure(running, caplog) -> None:
    def broken(_: object) -> float:
        raise KeyError("Retry-After")

    cluster, _ = running(Basic(), {"retry": Retry(wait=broken, on=BusyError)})
    assert sorted(cluster.failed("numbers")) == BAD
    assert "the wait of its Retry raised KeyError" in caplog.text


def test_a_condition_that_raises_is_an_ordinary_failure(running, caplog) -> None:
    def broken(error: BaseException) -> bool:
        return bool(error.response)  # type: ignore[attr-defined]

    cluster, _ = running(Basic(), {"retry": Retry(on=broken)})
    assert sorted(cluster.failed("numbers")) == BAD
    assert "its Retry raised AttributeError" in caplog.text


def test_a_bolt_of_a_closed_cluster_leaves_nothing_behind() -> None:
    feeder = FeederSpout(fields="number long")
    with closing(LocalCluster(topology(Async(), feeder))) as cluster:
        cluster.__enter__()
        feeder.feed([3], 3)
        cluster.run_until_idle()
        assert cluster.pending("numbers") == 1

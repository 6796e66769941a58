"""Output of any size: large output leaves in parts, and output above ``max_output_bytes`` fails
only the tuple that emits it.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import ClassVar, NoReturn

import pyarrow as pa
import pytest

from tests.support.inbox_cluster import InboxCluster
from tests.support.pump import Killed, Pump, Source, killed_after
from tests.support.waiting import wait_until
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Config,
    StatefulBolt,
    TopologyBuilder,
)
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import PARCEL_BYTES
from tiercel.acker.inbox.contract import Bounds
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.spark_jobs.errors import OutputLimitError
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.workers.testing.engine import SimulatedClock

LIMIT = 100_000
ROW = 10_000
REASON = (
    "OutputLimitError: 'explode' emits more than 100000 bytes in one call: emit a reference to the "
    "data, split the message, or raise max_output_bytes"
)


class Explode(BasicBolt):
    """Emits the given number of rows of the given size."""

    output_fields = "row binary, n long"

    def execute(self, tup, collector):
        for n in range(tup["rows"]):
            collector.emit([n.to_bytes(4, "big") * (tup["size"] // 4), n])


class ExplodeWithState(StatefulBolt):
    output_fields = "row binary, n long"

    def execute(self, tup, collector):
        Explode.execute(self, tup, collector)


class ExplodeInThreads(Explode):
    """Executed in threads, by its ``config``."""


class ExplodeAsync(AsyncBolt):
    output_fields = "row binary, n long"

    async def execute(self, tup, collector):
        Explode.execute(self, tup, collector)


class ExplodeByHand(Bolt):
    output_fields = "row binary, n long"

    def execute(self, tup, collector):
        for n in range(tup["rows"]):
            collector.emit([bytes(tup["size"]), n], tup)
        collector.ack(tup)


class ExplodeBatch(BatchBolt):
    output_fields = "row binary, n long"
    wait_ms = 0

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            for n in range(tup["rows"]):
                collector.emit([bytes(tup["size"]), n], tup)


class ExplodeArrow(ArrowBolt):
    output_fields = "row binary, n long"

    def execute(self, batch, collector):
        anchors = []
        rows = []
        for at, tup in enumerate(batch.to_pylist()):
            anchors += [at] * tup["rows"]
            rows += [bytes(tup["size"])] * tup["rows"]
        out = {"row": pa.array(rows, pa.binary()), "n": pa.array(anchors, pa.int64())}
        collector.emit(pa.RecordBatch.from_pydict(out), anchors)


class Sink(BasicBolt):
    """Counts the tuples by number."""

    def execute(self, tup, collector):
        seen[tup["n"]] += 1


seen: Counter[int] = Counter()
KINDS = [
    Explode,
    ExplodeWithState,
    ExplodeInThreads,
    ExplodeAsync,
    ExplodeByHand,
    ExplodeBatch,
    ExplodeArrow,
]


@pytest.fixture(autouse=True)
def _nothing_seen():
    seen.clear()


def topology(bolt=None, sinks=1, **settings):
    builder = TopologyBuilder("large", Config(**settings))
    builder.set_spout("orders", Source("rows long, size long"))
    config = {"threads": 3} if isinstance(bolt, ExplodeInThreads) else None
    builder.set_bolt("explode", bolt or Explode(), config=config).shuffle_grouping("orders")
    builder.set_bolt("sink", Sink(), parallelism=sinks).fields_grouping("explode", "n")
    return builder.build()


@pytest.fixture
def simulated():
    """Make pumps on simulated time for any kind of bolt."""
    made = []

    def make(topology):
        made.append(Pump(topology, simulated=SimulatedClock()))
        return made[-1]

    yield make
    for pump in made:
        for attempt in pump.attempts.values():
            attempt.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_tuple_that_emits_more_than_the_limit_fails_alone(kind, simulated):
    pump = simulated(topology(kind(), max_output_bytes=LIMIT))
    before = pump.feed([1, ROW], [2, ROW])
    [file] = pump.feed([1_000, ROW])
    after = pump.feed([3, ROW], [1, ROW])
    pump.run()
    assert pump.failed == {file: f"explode: {REASON}"}
    assert sorted(pump.acked) == sorted([*before, *after])
    assert pump.ledger.pending() == 0


@pytest.mark.parametrize("kind", [Explode, ExplodeByHand, ExplodeAsync, ExplodeArrow])
def test_one_value_larger_than_the_limit_fails_its_tuple(kind, simulated):
    pump = simulated(topology(kind(), max_output_bytes=LIMIT))
    [large] = pump.feed([1, 2 * LIMIT])
    [small] = pump.feed([1, ROW])
    pump.run()
    assert pump.failed == {large: f"explode: {REASON}"}
    assert pump.acked == [small]


def test_no_more_than_the_limit_is_in_memory_when_a_call_is_refused():
    class Greedy(Explode):
        def execute(self, tup, collector):
            try:
                super().execute(tup, collector)
            except OutputLimitError:
                sizes.append(
                    sum(
                        len(values[0])
                        for made in pump.attempts[2]._setup.outputs.task_outputs
                        for values in made.values
                    )
                )
                raise

    sizes: list[int] = []
    bolt = Greedy()
    pump = Pump(topology(bolt, max_output_bytes=LIMIT))
    pump.attempts[2]._setup.copy._made = lambda: bolt
    pump.feed([1_000_000, ROW])
    pump.run()
    assert LIMIT - 2 * ROW < sizes[0] <= LIMIT


@pytest.mark.parametrize("kind", [ExplodeBatch, ExplodeArrow])
def test_tuples_whose_step_has_emitted_enough_come_again_without_blame(kind):
    pump = Pump(topology(kind(), max_output_bytes=LIMIT))
    roots = pump.feed(*[[9, ROW]] * 8)
    pump.send()
    pump.work()
    [feed] = pump.feeds
    outcomes = feed.read(timedelta(0))
    assert outcomes.acked
    assert len(outcomes.acked) + len(outcomes.failed) == len(roots)
    assert outcomes.failed
    assert not any(failure.blame for failure in outcomes.failed)
    assert {failure.retry_after_s for failure in outcomes.failed} == {0.0}


def test_a_step_ends_when_its_output_is_large():
    pump = Pump(topology())
    roots = pump.feed(*[[10, PARCEL_BYTES // 20]] * 20)
    pump.send()
    explode = pump.attempts[2]
    explode.turn()
    assert pump.inboxes.figures([3])[3].bytes < 2 * PARCEL_BYTES
    pump.run()
    assert sorted(pump.acked) == sorted(roots)


def test_large_output_leaves_in_parts_that_an_inbox_has_room_for():
    bounds = Bounds(bytes=2 * PARCEL_BYTES)
    pump = Pump(topology(), inboxes=MemoryInboxes(bounds))
    roots = pump.feed([300, PARCEL_BYTES // 40])
    pump.send()
    held: list[int] = []

    def make_room(seconds):
        held.append(pump.inboxes.figures([3])[3].bytes)
        pump.work(3)

    pump.attempts[2]._committer._wait = make_room
    pump.run()
    assert len(held) > 1
    assert max(held) <= bounds.bytes
    assert seen == dict.fromkeys(range(300), 1)
    assert pump.acked == roots


def test_many_small_tuples_leave_in_parts_too():
    pump = Pump(topology(), inboxes=MemoryInboxes(Bounds(tuples=20_000)))
    roots = pump.feed([50_000, 4])
    pump.attempts[2]._committer._wait = lambda _: pump.work(3)
    pump.run()
    assert seen == dict.fromkeys(range(50_000), 1)
    assert pump.acked == roots


@pytest.mark.parametrize("effects", range(14))
def test_a_death_between_two_parts_repeats_and_loses_none(effects):
    pump = Pump(topology(sinks=2))
    pump.feed([1, 4])
    roots = pump.feed([100, PARCEL_BYTES // 30])
    pump.send()
    with killed_after(effects):
        pump.work(2)
    pump.take_over(2)
    pump.run()
    assert {entry.attempt for entry in pump.inboxes._boxes[3].senders.values()} >= {2}
    assert seen == {0: 2, **dict.fromkeys(range(1, 100), 1)}
    assert set(roots) <= set(pump.acked)
    assert pump.ledger.pending() == 0
    assert not pump.failed


def test_a_step_whose_parts_have_not_all_left_is_not_finished_when_redis_was_away() -> None:
    """Else a death while the commit is repeated would lose the parts that have not left."""
    pump = Pump(topology(), inboxes=MemoryInboxes(Bounds(bytes=2 * PARCEL_BYTES)))
    roots = pump.feed([200, PARCEL_BYTES // 30])
    pump.send()
    explode = pump.attempts[2]

    def away(_seconds: float) -> NoReturn:
        explode._committer._wait = killed
        raise RedisUnavailableError("away")

    def killed(_seconds: float) -> NoReturn:
        raise Killed

    explode._committer._wait = away
    with pytest.raises(Killed):
        explode.turn()
    pump.work(3)
    pump.attempts[2] = attempt_at(pump.around, 2, threading.Event())
    pump.attempts[2]._committer._wait = lambda _: pump.work(3)
    pump.attempts[2].recover()
    pump.run()
    assert seen == dict.fromkeys(range(200), 1)
    assert pump.acked == roots


class FromAThread(Bolt):
    """Emits from a thread, between two steps."""

    output_fields = "row binary, n long"
    transient = frozenset({"held"})

    def execute(self, tup, collector):
        refused.clear()
        self.held = tup

        def emit():
            try:
                for n in range(tup["rows"]):
                    collector.emit([bytes(tup["size"]), n], tup)
            except OutputLimitError as error:
                refused.append(error)
                collector.fail(tup, error)
            else:
                collector.ack(tup)
            done.set()

        done.clear()
        threading.Thread(target=emit).start()


done = threading.Event()
refused: list[OutputLimitError] = []


def test_a_thread_that_emits_more_than_the_limit_between_two_steps_is_told():
    cluster = InboxCluster(topology(FromAThread(), max_output_bytes=LIMIT))
    attempt = cluster.attempt(2)
    [large] = cluster.emit([[1_000, ROW]])
    attempt.turn()
    assert done.wait(10)
    assert refused
    attempt.turn()
    wait_until(lambda: cluster.outcomes().failed, 10, "the failure")
    [small] = cluster.emit([[9, ROW]])
    attempt.turn()
    assert done.wait(10)
    assert not refused
    attempt.turn()
    cluster.work({3: cluster.attempt(3)})
    assert cluster.outcomes().acked == [small]
    assert large


class Lazy(BasicBolt):
    """Emits an array by an iterator, which no second look finds full."""

    output_streams: ClassVar = {"default": "rows array<long>", "direct": "rows array<long>"}
    direct_streams = frozenset({"direct"})

    def execute(self, tup, collector):
        rows = iter(range(tup["rows"]))
        if tup["size"]:
            collector.emit_direct(3, [rows], stream="direct")
        else:
            collector.emit([rows])


class LazyAsync(AsyncBolt):
    output_streams = Lazy.output_streams
    direct_streams = Lazy.direct_streams

    async def execute(self, tup, collector):
        Lazy.execute(self, tup, collector)


class LazyByHand(Bolt):
    output_streams = Lazy.output_streams
    direct_streams = Lazy.direct_streams

    def execute(self, tup, collector):
        Lazy.execute(self, tup, collector)
        collector.ack(tup)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("kind", [Lazy, LazyAsync, LazyByHand])
def test_what_an_iterator_yields_counts(kind, direct, simulated):
    builder = TopologyBuilder("large", Config(max_output_bytes=LIMIT))
    builder.set_spout("orders", Source("rows long, size long"))
    builder.set_bolt("explode", kind()).shuffle_grouping("orders")
    sink = builder.set_bolt("sink", Length())
    sink.shuffle_grouping("explode").direct_grouping("explode", stream="direct")
    pump = simulated(builder.build())
    [large] = pump.feed([LIMIT, int(direct)])
    [small] = pump.feed([10, int(direct)])
    pump.run()
    assert pump.failed == {large: f"explode: {REASON}"}
    assert pump.acked == [small]
    assert seen == {10: 1}


class Length(BasicBolt):
    def execute(self, tup, collector):
        seen[len(tup["rows"])] += 1

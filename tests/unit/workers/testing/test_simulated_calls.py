"""AsyncBolts and threads on simulated time: sleeping takes no real time, outside calls do."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from contextlib import closing
from typing import Any, ClassVar

import pytest

from tests.semantics.components import chain, feeding, outcome
from tiercel import AsyncBolt, BasicBolt, Config, TopologyBuilder, TupleError
from tiercel.testing import LocalCluster, LocalClusterError, complete_topology


class Sleeping(AsyncBolt):
    """Sleeps for a number of seconds, then emits the number."""

    output_fields = "x long"
    cancelled: ClassVar[list[int]] = []

    async def execute(self, tup, collector):
        try:
            await asyncio.sleep(tup[0])
        except asyncio.CancelledError:
            self.cancelled.append(tup[0])
            raise
        collector.emit([tup[0]])


def test_an_hour_of_sleep_takes_milliseconds_and_ends_at_its_moment() -> None:
    began = time.monotonic()
    topology = chain(feeding(3600, 1, 0), Sleeping())
    with LocalCluster(topology, Config(message_timeout_secs=7200)) as cluster:
        cluster.run_until_idle()
        assert outcome(cluster) == ([0], [], 2), "time stands still"
        cluster.advance_time(3599.999)
        assert outcome(cluster) == ([0, 1], [], 1)
        cluster.advance_time(0.001)
        assert outcome(cluster) == ([0, 1, 3600], [], 0)
        assert cluster.read_tuples("b1") == [[0], [1], [3600]]
    assert time.monotonic() - began < 60


def test_sleeps_one_after_the_other_end_at_the_moments_that_they_should() -> None:
    topology = chain(feeding(1, 2), Sleeping(), Sleeping())
    with LocalCluster(topology) as cluster:
        cluster.advance_time(3)
        assert outcome(cluster) == ([1], [], 1)
        cluster.advance_time(1)
        assert outcome(cluster) == ([1, 2], [], 0)


def test_a_call_that_lasts_longer_than_the_timeout_is_cancelled() -> None:
    Sleeping.cancelled.clear()
    feeder = feeding(100)
    with LocalCluster(chain(feeder, Sleeping()), Config(message_timeout_secs=30)) as cluster:
        cluster.advance_time(29)
        assert not Sleeping.cancelled
        cluster.advance_time(1)
        assert (outcome(cluster), Sleeping.cancelled) == (([], [100], 0), [100])
        feeder.feed([5], 5)
        cluster.advance_time(5)
        assert outcome(cluster) == ([5], [100], 0), "its place is free"
    assert cluster.fail_reasons("s") == ["timeout"]


class Exits(AsyncBolt):
    """Calls ``sys.exit`` for an odd number, in an asyncio task of its own."""

    async def execute(self, tup, collector):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.exits(tup[0]))

    async def exits(self, number):
        if number % 2:
            sys.exit(3)


def test_an_exit_in_a_task_of_the_bolt_fails_its_tuple_as_on_spark(caplog) -> None:
    with LocalCluster(chain(feeding(0, 1, 2), Exits())) as cluster:
        cluster.run_until_idle()
        assert outcome(cluster) == ([0, 2], [1], 0)
        [reason] = cluster.fail_reasons("s")
    assert "SystemExit: 3" in reason
    assert "raised SystemExit: 3; the loop goes on" in caplog.text


def test_what_sleeps_at_the_end_is_cancelled() -> None:
    Sleeping.cancelled.clear()
    with LocalCluster(chain(feeding(100), Sleeping())) as cluster:
        cluster.run_until_idle()
    assert Sleeping.cancelled == [100]


def test_complete_topology_waits_for_sleepers_up_to_the_timeout() -> None:
    topology = chain(feeding(), Sleeping())
    emitted = complete_topology(topology, {"s": [[20], [10]]})
    assert emitted["b1"] == [[10], [20]]


class Slow(AsyncBolt):
    """Sleeps in every method but execute, and records when."""

    output_fields = "at double"

    async def prepare(self, config, context):
        await asyncio.sleep(2)
        self.flushed = 0

    async def execute(self, tup, collector):
        collector.emit([asyncio.get_running_loop().time()])

    async def flush(self, collector):
        await asyncio.sleep(3)

    async def cleanup(self):
        await asyncio.sleep(1)


def test_prepare_and_flush_that_sleep_move_time() -> None:
    with LocalCluster(chain(feeding(0), Slow())) as cluster:
        cluster.run_until_idle()
        assert cluster.read_tuples("b1") == [[2.0]]
        cluster.advance_time(1)
        assert outcome(cluster) == ([0], [], 0)


class NeverFlushed(AsyncBolt):
    async def execute(self, tup, collector):
        pass

    async def flush(self, collector):
        await asyncio.Event().wait()


def test_a_flush_that_waits_for_what_never_comes_is_told() -> None:
    with LocalCluster(chain(feeding(0), NeverFlushed())) as cluster:
        cluster.run_until_idle()
        [reason] = cluster.fail_reasons("s")
    assert reason.endswith(
        "prepare, flush or cleanup of an AsyncBolt waits for an event that never comes"
    )


class Asking(AsyncBolt):
    """Queries a server over a persistent connection."""

    output_fields = "answer string"

    def __init__(self, port: int) -> None:
        self.port = port

    async def prepare(self, config, context):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.one = asyncio.Lock()

    async def execute(self, tup, collector):
        async with self.one:
            self.writer.write(f"{tup[0]}\n".encode())
            answer = await self.reader.readline()
        collector.emit([answer.decode().strip()])

    def cleanup(self):
        self.writer.close()


def serve(listening: socket.socket) -> None:
    """Serve one connection: answer each line a moment later."""
    connection, _ = listening.accept()
    with connection, connection.makefile("rw") as lines:
        for line in lines:
            time.sleep(0.01)
            lines.write(f"re: {line}")
            lines.flush()


def test_sockets_and_threads_are_waited_for_in_real_time() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        port = listening.getsockname()[1]
        with LocalCluster(chain(feeding(1, 2, 3), Asking(port))) as cluster:
            cluster.run_until_idle()
            assert cluster.read_tuples("b1") == [["re: 1"], ["re: 2"], ["re: 3"]]


# Python's own pool would have five threads on a machine with one core.
TOGETHER = threading.Barrier(4)


class InThreads(AsyncBolt):
    output_fields = "x long"

    async def execute(self, tup, collector):
        await asyncio.to_thread(TOGETHER.wait, 30)
        collector.emit([tup[0]])


class Sleepy(BasicBolt):
    output_fields = "x long"

    def execute(self, tup, collector):
        TOGETHER.wait(30)
        assert collector.emit([tup[0]]) == []


@pytest.mark.parametrize(
    ("bolt", "config"), [(InThreads(), {}), (Sleepy(), {"threads": 20})], ids=["async", "threads"]
)
def test_threads_work_at_once_and_are_all_waited_for(bolt: Any, config: dict[str, Any]) -> None:
    builder = TopologyBuilder("threads")
    builder.set_spout("s", feeding(*range(20)))
    builder.set_bolt("b", bolt, config=config).shuffle_grouping("s")
    with LocalCluster(builder.build()) as cluster:
        cluster.run_until_idle()
        assert outcome(cluster) == (list(range(20)), [], 0)


def test_a_cluster_inside_an_event_loop_is_refused_in_one_line() -> None:
    async def test() -> None:
        with LocalCluster(chain(feeding(1), Sleeping())):
            pass

    with pytest.raises(LocalClusterError, match="run the cluster in a plain test"):
        asyncio.run(test())


class Background(AsyncBolt):
    """Counts seconds in its own task."""

    output_fields = "seconds int"

    async def prepare(self, config, context):
        self.seconds = 0
        self.counting = asyncio.create_task(self.count())

    async def count(self):
        while True:
            await asyncio.sleep(1)
            self.seconds += 1

    async def execute(self, tup, collector):
        collector.emit([self.seconds])


def test_a_task_of_a_bolts_own_goes_on_between_calls() -> None:
    feeder = feeding(1)
    with LocalCluster(chain(feeder, Background())) as cluster:
        cluster.advance_time(10)
        feeder.feed([2], 2)
        cluster.run_until_idle()
        assert cluster.read_tuples("b1") == [[0], [10]]


class Stubborn(AsyncBolt):
    """Swallows every cancellation."""

    async def execute(self, tup, collector):
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue


def test_a_call_that_swallows_its_cancellation_is_told_and_does_not_hold_the_test_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = time.monotonic()
    with LocalCluster(chain(feeding(1), Stubborn())) as cluster:
        cluster.advance_time(40)
        assert cluster.fail_reasons("s") == ["timeout"]
        assert "goes on although it was cancelled after 30 s" in caplog.text
    assert "b1: 1 calls go on although they were cancelled" in caplog.text
    assert time.monotonic() - began < 20


class Straying(AsyncBolt):
    """Emits after its call has ended, and in flush."""

    output_fields = "x long"
    raised: ClassVar[list[str]] = []

    async def later(self, collector):
        await asyncio.sleep(1)
        self.try_to_emit(collector)

    def try_to_emit(self, collector):
        try:
            collector.emit([1])
        except TupleError as error:
            self.raised.append(f"{type(error).__name__}: {error}")

    async def execute(self, tup, collector):
        self.task = asyncio.create_task(self.later(collector))

    def flush(self, collector):
        self.try_to_emit(collector)


def test_what_is_emitted_when_the_call_is_over_is_refused() -> None:
    Straying.raised.clear()
    with LocalCluster(chain(feeding(1), Straying())) as cluster:
        cluster.advance_time(2)
        assert (outcome(cluster), cluster.read_tuples("b1")) == (([1], [], 0), [])
    in_flush, later = Straying.raised
    assert in_flush.startswith("TupleError: 'b1' emits in flush, where there is no tuple")
    assert later == "TupleError: 'b1' emits after its execute has ended: await all that emits"


class Reporting(AsyncBolt):
    output_streams = {"words": "word string", "direct": "word string"}  # noqa: RUF012 - as users write it
    direct_streams = frozenset({"direct"})

    async def execute(self, tup, collector):
        collector.emit([str(tup[0])], stream="words")
        collector.emit_direct(3, ["direct"], stream="direct")
        collector.report_error("seen")
        if tup[0] == 2:
            collector.emit([2, 2], stream="words")


class Receiving(BasicBolt):
    output_fields = "word string, stream string"

    def execute(self, tup, collector):
        collector.emit([tup[0], tup.source_stream])


def test_streams_direct_ones_and_reports_are_as_for_every_bolt() -> None:
    builder = TopologyBuilder("streams")
    builder.set_spout("s", feeding(1, 2))
    builder.set_bolt("b", Reporting()).shuffle_grouping("s")
    receiving = builder.set_bolt("r", Receiving())
    receiving.shuffle_grouping("b", stream="words").direct_grouping("b", stream="direct")
    with LocalCluster(builder.build()) as cluster:
        cluster.run_until_idle()
        assert outcome(cluster) == ([1], [2], 0)
        assert sorted(cluster.read_tuples("r")) == [["1", "words"], ["direct", "direct"]]
        assert "BadValuesError: 'b' emits [2, 2] on stream 'words'" in cluster.fail_reasons("s")[0]

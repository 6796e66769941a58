"""Bolts paused by an operator, and tasks whose executor is asked to leave: they finish the calls
under way and take nothing new.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import ClassVar

import pytest

from tests.support.inbox_cluster import RUN, InboxCluster
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Retry,
    TopologyBuilder,
    WindowedBolt,
    tumbling,
)
from tiercel.acker.metrics.contract import total_of
from tiercel.spark_jobs.topology.graph import extra_task, inboxes_of


class Work:
    """Controls the calls of a bolt: a call for the word "slow" lasts until the test ends it."""

    may_end = threading.Event()
    lock = threading.Lock()
    executed: ClassVar[Counter[str]] = Counter()
    began: ClassVar[Counter[str]] = Counter()

    @classmethod
    def do(cls, word):
        cls.began[word] += 1
        if word == "slow":
            cls.may_end.wait(30)
        with cls.lock:
            cls.executed[word] += 1


class Plainly(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        if not tup.is_tick:
            Work.do(tup["word"])
            collector.emit([tup["word"]])


class Again(Plainly):
    """Fails each word once."""

    def execute(self, tup, collector):
        Work.began[tup["word"]] += 1
        if Work.began[tup["word"]] == 1 and tup["word"] != "slow":
            raise ValueError("not yet")
        super().execute(tup, collector)


class InThreads(Bolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        threading.Thread(target=self._work, args=(tup, collector)).start()

    def _work(self, tup, collector):
        Work.do(tup["word"])
        collector.emit([tup["word"]], anchors=tup)
        collector.ack(tup)


class Batches(BatchBolt):
    output_fields = "word string"

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            Work.do(tup["word"])
            collector.emit([tup["word"]], anchors=tup)


class Rows(ArrowBolt):
    output_fields = "word string"

    def execute(self, batch, collector):
        for word in batch.column("word").to_pylist():
            Work.do(word)
        collector.emit(batch, range(batch.num_rows))


class Asynchronous(AsyncBolt):
    output_fields = "word string"

    async def execute(self, tup, collector):
        await asyncio.to_thread(Work.do, tup["word"])
        collector.emit([tup["word"]])


class Last(BasicBolt):
    def execute(self, tup, collector):
        pass


KINDS = {
    "basic": (Plainly(), {}),
    "in threads of its own": (InThreads(), {}),
    "batches": (Batches(), {"batch_size": 1}),
    "rows": (Rows(), {}),
    "async": (Asynchronous(), {"concurrency": 2}),
    "threads": (Plainly(), {"threads": 2}),
    "ordered": (Plainly(), {"ordered_by": "word"}),
    "async in order": (Asynchronous(), {"concurrency": 2, "ordered_by": "word"}),
    "retry": (Again(), {"retry": Retry(attempts=5, wait=0.01)}),
}


def topology(bolt, config, parallelism=1):
    builder = TopologyBuilder("paused")
    builder.set_spout("spout", Source("word string"))
    work = builder.set_bolt("work", bolt, parallelism, config=config)
    if "ordered_by" in config:
        work.fields_grouping("spout", "word")
    else:
        work.shuffle_grouping("spout")
    builder.set_bolt("last", Last()).shuffle_grouping("work")
    return builder.build()


@pytest.fixture(autouse=True)
def fresh():
    Work.may_end.clear()
    Work.executed.clear()
    Work.began.clear()
    yield
    Work.may_end.set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_bolt_finishes_what_it_executes_and_takes_nothing_new(kind):
    cluster = InboxCluster(topology(*KINDS[kind]))
    cluster.start()
    acked: set[int] = set()

    def acked_are(count):
        acked.update(cluster.outcomes().acked)
        return len(acked) == count

    try:
        [slow] = cluster.emit([["slow"]])
        wait_until(lambda: Work.began["slow"])
        cluster.around.paused.add("work")
        others = cluster.emit([[str(number)] for number in range(20)])
        Work.may_end.set()
        # The step under way may have claimed some tuples before the order.
        wait_until(lambda: acked_are(-1) or slow in acked)
        before = dict(Work.executed)
        threading.Event().wait(0.6)
        assert dict(Work.executed) == before, "nothing new begins"
        assert cluster.inboxes.figures([2, 3])[3].tuples == 0, "the next bolt goes on"
        cluster.around.paused.clear()
        wait_until(lambda: acked_are(1 + len(others)))
        assert set(Work.executed.values()) == {1}
        assert not cluster.outcomes().failed
    finally:
        Work.may_end.set()
        cluster.stop()


def test_a_paused_bolt_in_a_row_is_not_executed_in_the_steps_of_the_bolt_before_it():
    builder = TopologyBuilder("row")
    builder.set_spout("spout", Source("word string"))
    builder.set_bolt("first", Plainly()).shuffle_grouping("spout")
    builder.set_bolt("work", Plainly()).shuffle_grouping("first")
    cluster = InboxCluster(builder.build())
    cluster.around.paused.add("work")
    cluster.start()
    try:
        cluster.emit([[str(number)] for number in range(50)])
        wait_until(lambda: len(Work.executed) == 50)
        threading.Event().wait(0.3)
        assert set(Work.executed.values()) == {1}, "only by the first bolt"
        cluster.around.paused.clear()
        wait_until(lambda: set(Work.executed.values()) == {2})

        def all_counted():  # after their step has committed
            cluster.around.counting.flush()
            return total_of(cluster.metrics.totals(), "work")["executed"] == 50

        wait_until(all_counted)
    finally:
        cluster.stop()


def test_a_paused_bolt_gets_one_tick_when_it_is_resumed():
    ticked = []

    class Ticks(BasicBolt):
        def execute(self, tup, collector):
            if tup.is_tick:
                ticked.append(tup)

    builder = TopologyBuilder("ticks")
    builder.set_spout("spout", Source("word string"))
    builder.set_bolt("work", Ticks(), config={"tick_tuple_freq_secs": 1.0}).fields_grouping(
        "spout", "word"
    )
    cluster = InboxCluster(builder.build())
    cluster.set_clock(100.0)
    cluster.around.paused.add("work")
    cluster.start()
    try:
        wait_until(lambda: cluster.threads[2][0].attempt is not None)
        cluster.set_clock(150.5)
        threading.Event().wait(0.5)
        assert not ticked
        cluster.around.paused.clear()
        wait_until(lambda: len(ticked) == 1)
    finally:
        cluster.stop()


@pytest.mark.parametrize("kind", ["basic", "async", "batches", "ordered"])
def test_a_task_that_waits_for_tuples_takes_none_once_it_is_woken_by_a_pause(kind):
    cluster = InboxCluster(topology(*KINDS[kind]))
    cluster.start()
    try:
        threading.Event().wait(0.3)
        cluster.around.paused.add("work")
        cluster.threads[2][0].wake()
        threading.Event().wait(0.3)
        cluster.emit([["one"]])
        threading.Event().wait(0.5)
        assert not Work.began
    finally:
        cluster.stop()


IN_LINE = [kind for kind, (_, config) in KINDS.items() if "ordered_by" not in config]
EXTRA = extra_task(2, 1)


def joined(bolt, config):
    """Two tasks and an extra task share a line; only the extra task works."""
    cluster = InboxCluster(topology(bolt, config, 2))
    cluster.inboxes.adopt(RUN, [*inboxes_of(cluster.topology), EXTRA])
    cluster.start(4, EXTRA)
    return cluster


def left(cluster, task):
    """Wait until the task has left; meanwhile its beats give back the tuples behind a long call."""
    bolt_task, thread = cluster.threads[task]
    wait_until(lambda: bolt_task.give_back() or not thread.is_alive())
    assert bolt_task.error is None


def all_acked(cluster, roots):
    acked: set[int] = set()
    wait_until(lambda: acked.update(cluster.outcomes().acked) or acked >= set(roots))
    assert not cluster.outcomes().failed


@pytest.mark.parametrize("kind", [kind for kind in IN_LINE if kind != "in threads of its own"])
def test_a_task_that_leaves_finishes_what_it_executes_and_others_execute_the_rest(kind):
    cluster = joined(*KINDS[kind])
    try:
        roots = cluster.emit([["slow"]])
        wait_until(lambda: Work.began["slow"])
        roots += cluster.emit([[str(number)] for number in range(20)])
        cluster.threads[EXTRA][0].leave()
        threading.Event().wait(0.3)
        assert cluster.threads[EXTRA][1].is_alive()
        assert not Work.executed
        Work.may_end.set()
        left(cluster, EXTRA)
        assert set(Work.executed) == {"slow"}
        assert cluster.inboxes.figures([EXTRA])[EXTRA].tuples == 0
        cluster.start(2)
        all_acked(cluster, roots)
        assert set(Work.executed.values()) == {1}
    finally:
        Work.may_end.set()
        cluster.stop()


@pytest.mark.parametrize("kind", ["basic", "rows"])
def test_what_it_had_taken_and_not_begun_is_executed_elsewhere_while_it_executes(kind):
    cluster = joined(*KINDS[kind])
    try:
        cluster.threads[EXTRA][0].leave()
        left(cluster, EXTRA)
        roots = cluster.emit([["slow"], *([str(number)] for number in range(20))])
        assert not Work.began
        cluster.start(EXTRA)
        wait_until(lambda: Work.began["slow"])
        cluster.threads[EXTRA][0].leave()
        cluster.start(2)
        if kind == "basic":
            give_back = cluster.threads[EXTRA][0].give_back
            wait_until(lambda: give_back() or len(Work.executed) == 20, 5)
            assert "slow" not in Work.executed
        Work.may_end.set()
        left(cluster, EXTRA)
        all_acked(cluster, roots)
        assert set(Work.executed.values()) == {1}
    finally:
        Work.may_end.set()
        cluster.stop()


def test_a_batch_that_waits_for_company_goes_back_to_the_line():
    cluster = joined(Batches(), {"batch_size": 100, "batch_wait_secs": 60})
    try:
        roots = cluster.emit([[str(number)] for number in range(20)])
        wait_until(lambda: cluster.inboxes.figures([EXTRA])[EXTRA].tuples == 20)
        cluster.threads[EXTRA][0].leave()
        left(cluster, EXTRA)
        assert cluster.inboxes.figures([EXTRA])[EXTRA].tuples == 0
        assert not Work.began
        cluster.emit([[str(number)] for number in range(20, 100)])
        cluster.start(2)
        all_acked(cluster, roots)
        assert set(Work.executed.values()) == {1}
    finally:
        cluster.stop()


def test_tuples_that_wait_for_a_permit_go_back_to_the_line():
    cluster = joined(Plainly(), {"rate_limit": "2/min", "threads": 4})
    try:
        roots = cluster.emit([[str(number)] for number in range(8)])
        wait_until(lambda: cluster.inboxes.figures([EXTRA])[EXTRA].tuples > 0)
        threading.Event().wait(0.3)
        cluster.threads[EXTRA][0].leave()
        left(cluster, EXTRA)
        assert cluster.inboxes.figures([EXTRA])[EXTRA].tuples == 0
        done = len(Work.executed)
        waiting = cluster.inboxes.figures(inboxes_of(cluster.topology))
        assert sum(one.tuples for one in waiting.values()) == len(roots) - done
    finally:
        cluster.stop()


@pytest.mark.parametrize("kind", ["ordered", "async in order"])
def test_what_waits_for_a_task_that_is_addressed_by_key_waits_for_its_next_attempt(kind):
    cluster = InboxCluster(topology(*KINDS[kind]))
    cluster.start()
    try:
        roots = cluster.emit([["slow"], *([str(number)] for number in range(20))])
        wait_until(lambda: Work.began["slow"])
        cluster.threads[2][0].leave()
        Work.may_end.set()
        left(cluster, 2)
        cluster.start(2)
        all_acked(cluster, roots)
        assert set(Work.executed.values()) == {1}
    finally:
        Work.may_end.set()
        cluster.stop()


class Twenty(WindowedBolt):
    window = tumbling(20)
    output_fields = "word string"

    def execute(self, window, collector):
        for tup in window:
            Work.do(tup["word"])
            collector.emit([tup["word"]])


def test_the_tuples_of_open_windows_wait_for_the_next_attempt():
    """Another task would put them into other windows."""
    cluster = InboxCluster(topology(Twenty(), {}, 2))
    cluster.start(4, 2)
    try:
        roots = cluster.emit([[str(number)] for number in range(5)])
        wait_until(lambda: cluster.inboxes.figures([2])[2].tuples == 5)
        cluster.threads[2][0].leave()
        left(cluster, 2)
        assert cluster.inboxes.figures([2])[2].tuples == 5
        cluster.start(2)
        roots += cluster.emit([[str(number)] for number in range(5, 20)])
        all_acked(cluster, roots)
        assert set(Work.executed.values()) == {1}
    finally:
        cluster.stop()

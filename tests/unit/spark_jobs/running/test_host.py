"""One process with several bolt tasks: its end, a lost task, and a bolt that hangs while its
neighbours go on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.inbox_cluster import RUN, InboxCluster
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import (
    AsyncBolt,
    BasicBolt,
    Config,
    RedisUnavailableError,
    TopologyBuilder,
    WindowedBolt,
    tumbling,
)
from tiercel.acker.inbox.contract import OpenWindows
from tiercel.acker.ledger import Failure
from tiercel.acker.metrics.contract import total_of
from tiercel.spark_jobs.process import host as hosts
from tiercel.spark_jobs.process.host import Host, LostTaskError
from tiercel.spark_jobs.running.commit import Committer
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.suspects.watchdog import CallLimit, Putting, Watchdog
from tiercel.spark_jobs.topology.graph import extra_task


class Sleeps(BasicBolt):
    """Blocks in the call for one word until the test releases it."""

    free = threading.Event()
    inside = threading.Event()

    def execute(self, tup, collector):
        if tup["word"] == "sleeper":
            self.inside.set()
            self.free.wait(30)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> InboxCluster:
    monkeypatch.setattr(hosts, "_BEAT_S", 0.01)
    Sleeps.free.clear()
    Sleeps.inside.clear()
    builder = TopologyBuilder("hosted")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Sleeps(), 2).fields_grouping("spout", "word")
    return InboxCluster(builder.build())


class Process:
    """A host in a thread; ending its process is only recorded."""

    def __init__(
        self,
        cluster: InboxCluster,
        limit: timedelta | None = None,
        tasks: Sequence[int] | None = None,
    ) -> None:
        self.died: list[int] = []
        self.error: BaseException | None = None
        putting = Putting(lambda _: None, lambda: None)
        self.host = Host(
            cluster.around,
            tasks or cluster.bolt_tasks,
            lambda watched, part: Watchdog(limit, watched, part, self.died.append, putting),
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.host.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def end(self) -> BaseException | None:
        self.host.stop()
        return self.ended()

    def ended(self) -> BaseException | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.error


def wait_until_seen(cluster: InboxCluster, tasks: Sequence[int]) -> None:
    """Wait until an attempt at each task has reported."""
    figures = cluster.inboxes.figures
    wait_until(lambda: all(one.seen_s is not None for one in figures(tasks).values()), 10)


def acked(cluster: InboxCluster, roots: list[int], failed: list[Failure] | None = None) -> bool:
    """Wait until these roots are acked; add failures meanwhile to ``failed``."""
    found: list[int] = []

    def enough() -> bool:
        outcomes = cluster.outcomes(0.01)
        found.extend(outcomes.acked)
        if failed is not None:
            failed.extend(outcomes.failed)
        return set(roots) <= set(found)

    wait_until(enough, timeout=20)
    return True


def test_all_its_tasks_work_at_once_and_it_ends_when_it_is_told(cluster: InboxCluster) -> None:
    process = Process(cluster)
    assert acked(cluster, cluster.emit([[f"w{number}"] for number in range(100)]))
    seen = cluster.inboxes.figures(cluster.bolt_tasks)
    wait_until_seen(cluster, cluster.bolt_tasks)
    assert {one.attempts for one in seen.values()} == {1}
    assert process.end() is None
    assert sum(task["executed"] for task in cluster.metrics.totals()["bolt"].values()) == 100


def test_when_the_run_is_over_it_ends_by_itself_and_that_is_no_failure(
    cluster: InboxCluster,
) -> None:
    process = Process(cluster)
    cluster.inboxes.adopt("another", cluster.bolt_tasks)
    assert process.ended() is None


def test_a_task_that_ends_is_noticed_before_the_next_beat(
    cluster: InboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_BEAT_S", 60.0)
    process = Process(cluster)
    assert acked(cluster, cluster.emit([[f"w{number}"] for number in range(100)]))
    cluster.inboxes.adopt("another", cluster.bolt_tasks)
    assert process.ended() is None


def test_asked_to_leave_it_finishes_what_it_executes_and_its_tasks_go_on_elsewhere(
    cluster: InboxCluster,
) -> None:
    process = Process(cluster)
    roots = cluster.emit([["sleeper"], ["a"], ["b"]])
    assert Sleeps.inside.wait(10)
    # An attempt that begins later is not queried; the driver queries once per second.
    wait_until_seen(cluster, cluster.bolt_tasks)
    cluster.inboxes.leave(RUN, cluster.bolt_tasks)
    cluster.emit([["c"]])
    process.thread.join(0.5)
    assert process.thread.is_alive()
    Sleeps.free.set()
    assert "the executor is asked to leave" in str(process.ended())
    assert isinstance(process.error, LostTaskError)
    other = Process(cluster)
    assert acked(cluster, roots)
    assert other.end() is None
    assert total_of(cluster.metrics.totals(), "bolt")["executed"] == 4


def test_asked_to_leave_the_process_of_extra_tasks_just_ends(cluster: InboxCluster) -> None:
    extra = [extra_task(2, 1), extra_task(3, 1)]
    cluster.inboxes.adopt(RUN, [*cluster.bolt_tasks, *extra])
    process = Process(cluster, tasks=extra)
    wait_until_seen(cluster, extra)
    cluster.inboxes.leave(RUN, extra)
    assert process.ended() is None


class Lacks(BasicBolt):
    """Finds no memory for one word."""

    def __init__(self, error):
        self.error = error

    def execute(self, tup, collector):
        if tup["word"] == "large":
            raise self.error


def lacking(error: Exception | None = None) -> tuple[InboxCluster, Process, list[int]]:
    """Return a process one of whose bolts lacked memory while the other was in a call."""
    builder = TopologyBuilder("lacking")
    builder.set_spout("spout", Source())
    builder.set_bolt("sleeps", Sleeps()).shuffle_grouping("spout")
    builder.set_bolt("lacks", Lacks(error or MemoryError())).shuffle_grouping("spout")
    cluster = InboxCluster(builder.build())
    process = Process(cluster)
    sleeper = cluster.emit([["sleeper"]])
    assert Sleeps.inside.wait(10)
    large = cluster.emit([["large"]])
    failed: list[Failure] = []
    wait_until(lambda: failed.extend(cluster.outcomes(0.01).failed) or failed, 10)
    assert [each.root for each in failed] == large
    process.thread.join(0.5)
    assert process.thread.is_alive()
    Sleeps.free.set()
    return cluster, process, sleeper


@pytest.mark.parametrize(
    "error", [MemoryError(), ExceptionGroup("of tasks", [ValueError(), MemoryError()])], ids=repr
)
@pytest.mark.usefixtures("cluster")
def test_if_no_memory_is_left_calls_end_and_the_tasks_go_on_in_a_new_process(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_SPARE_BYTES", 1 << 60)
    cluster, process, sleeper = lacking(error)
    assert "a bolt had no memory left" in str(process.ended())
    assert isinstance(process.error, LostTaskError)
    assert acked(cluster, sleeper)


@pytest.mark.usefixtures("cluster")
def test_a_tuple_that_needs_too_much_memory_fails_alone() -> None:
    cluster, process, sleeper = lacking()
    assert acked(cluster, [*sleeper, *cluster.emit([["small"]])])
    assert process.thread.is_alive()
    assert process.end() is None


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("Failed to serialize the command.")], ids=repr
)
def test_a_step_that_finds_no_memory_to_be_committed_names_its_bolt(
    cluster: InboxCluster,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lacking_memory(*_: object) -> None:
        raise error

    process = Process(cluster)
    monkeypatch.setattr(Committer, "commit", lacking_memory)
    cluster.emit([["a"], ["b"], ["c"], ["d"]])
    ended = str(process.ended())
    assert "bolt tasks ended: " in ended
    assert type(error).__name__ in ended, "the reason is not empty"
    [first, *_] = [each for each in caplog.records if getattr(each, "event", "") == "out_of_memory"]
    assert "bolt[" in first.getMessage()
    assert "had no memory left to commit a step" in first.getMessage()
    assert not [each for each in caplog.records if each.exc_info]


def test_a_task_that_another_process_takes_over_ends_this_one_with_its_name(
    cluster: InboxCluster,
) -> None:
    process = Process(cluster)
    assert acked(cluster, cluster.emit([["a"], ["b"], ["c"], ["d"]]))
    cluster.attempt(3)
    error = process.ended()
    assert isinstance(error, LostTaskError)
    assert "bolt tasks ended: 3: " in str(error)


def test_while_redis_is_away_it_waits_and_goes_on_afterwards(
    cluster: InboxCluster, monkeypatch
) -> None:
    process = Process(cluster)
    asked = threading.Event()

    def away(*_: object) -> None:
        asked.set()
        raise RedisUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(cluster.inboxes, "beat", away)
        assert asked.wait(10)
    assert acked(cluster, cluster.emit([["a"]]))
    assert process.end() is None


def test_a_server_that_takes_no_counts_still_hears_that_the_tasks_are_attended(
    cluster: InboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def full(*_: object) -> None:
        refused.set()
        raise RedisUnavailableError("out of memory")

    monkeypatch.setattr(cluster.metrics, "add_all", full)
    process = Process(cluster)
    cluster.emit([["sleeper"]])
    assert Sleeps.inside.wait(10)
    assert refused.wait(10)

    def said() -> bool:
        found = cluster.inboxes.figures(cluster.bolt_tasks).values()
        return all(one.seen_s is not None for one in found) and any(one.doing_s for one in found)

    wait_until(said, 10)
    Sleeps.free.set()
    assert process.end() is None


def test_a_server_that_is_away_keeps_no_task_from_being_told_to_end(
    cluster: InboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercel.spark_jobs.running.attempt.LONGEST_WAIT_S", 0.05)
    process = Process(cluster)
    assert acked(cluster, cluster.emit([["a"], ["b"], ["c"], ["d"]]))

    def away(*_: object) -> None:
        raise RedisUnavailableError("away")

    monkeypatch.setattr("tiercel.acker.inbox.memory.MemoryInbox.wake", away)
    assert process.end() is None
    assert not any(thread.is_alive() for thread in process.host._threads)


def test_a_tuple_that_hangs_fails_its_neighbours_go_on_and_the_next_process_leaves_it_out(
    cluster: InboxCluster,
) -> None:
    process = Process(cluster, timedelta(seconds=0.5))
    [sleeper] = cluster.emit([["sleeper"]])
    assert Sleeps.inside.wait(10)
    hanging = next(one for one in process.host._tasks if one.executing() is not None).task
    neighbours = []
    for number in range(40):
        neighbours += cluster.emit([[f"w{number}"]])
    wait_until(lambda: process.died, timeout=20)
    outcomes = cluster.outcomes()
    assert [failure.root for failure in outcomes.failed] == [sleeper]
    assert outcomes.failed[0].reason.startswith("still executing after ")
    assert outcomes.failed[0].task == hanging
    done = set(outcomes.acked)
    assert done, "the neighbours waited for it"
    # The thread is gone with its process: a newer attempt owns the inbox, and the old one changes
    # nothing more.
    cluster.around = replace(cluster.around, suspicion=Suspicion(RUN, cluster.book, cluster.ledger))
    successor = Process(cluster)
    rest = [root for root in neighbours if root not in done]
    assert acked(cluster, rest)
    assert successor.end() is None
    assert cluster.ledger.pending() == 0
    Sleeps.free.set()
    process.ended()
    assert not cluster.outcomes()


def long_cluster(**settings: float) -> InboxCluster:
    builder = TopologyBuilder("hosted", config=Config(message_timeout_secs=0.6))
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Sleeps(), 1, config=settings).shuffle_grouping("spout")
    return InboxCluster(builder.build())


@pytest.mark.usefixtures("cluster")
def test_a_tuple_may_take_longer_than_its_message_whose_timeout_begins_anew_meanwhile() -> None:
    cluster = long_cluster(execute_timeout_secs=60)
    process = Process(cluster, timedelta(seconds=0.6))
    waiting = [*cluster.emit([["first"]]), *cluster.emit([["sleeper"]])]
    assert Sleeps.inside.wait(10)
    waiting += cluster.emit([["behind"]])
    reset: Counter[int] = Counter()
    acked: set[int] = set()

    def enough() -> bool:
        outcomes = cluster.outcomes(0.01)
        reset.update(outcomes.reset)
        acked.update(outcomes.acked)
        return all(reset[root] >= 3 for root in waiting if root not in acked)

    wait_until(enough, timeout=20)
    assert process.died == [], "three thirds are a whole timeout"
    Sleeps.free.set()
    wait_until(lambda: acked.update(cluster.outcomes(0.01).acked) or acked == set(waiting), 20)
    assert process.end() is None


@pytest.mark.usefixtures("cluster")
def test_a_tuple_that_takes_longer_than_its_bolt_may_fails_with_that_limit() -> None:
    cluster = long_cluster(execute_timeout_secs=1.5)
    process = Process(cluster, timedelta(seconds=0.6))
    [sleeper] = cluster.emit([["sleeper"]])
    wait_until(lambda: process.died, timeout=20)
    [failure] = cluster.outcomes().failed
    assert (failure.root, failure.reason) == (
        sleeper,
        "still executing after 2 s; its process was ended",
    )
    Sleeps.free.set()
    process.end()


def test_each_beat_says_for_how_long_a_task_has_been_in_one_call(cluster: InboxCluster) -> None:
    process = Process(cluster)
    assert acked(cluster, cluster.emit([["quick"]]))
    cluster.emit([["sleeper"]])
    assert Sleeps.inside.wait(10)

    def ages() -> list[float]:
        found = cluster.inboxes.figures(cluster.bolt_tasks).values()
        return [one.doing_s for one in found if one.doing_s is not None]

    wait_until(lambda: ages() and ages()[0] > 0.2, 10)
    assert len(ages()) == 1, "its neighbour is in no call"
    Sleeps.free.set()
    wait_until(lambda: not ages(), 10)
    assert process.end() is None


class Waits(AsyncBolt):
    """Blocks nothing while it waits for one word."""

    async def execute(self, tup, collector):
        if tup["word"] == "sleeper":
            await asyncio.to_thread(Sleeps.free.wait, 20)
        if tup["word"] == "blocks":
            time.sleep(1.5)  # noqa: ASYNC251 - what a bolt should not do


def sleeping(limit: timedelta) -> tuple[InboxCluster, Process, Callable[[], float | None]]:
    """Have a call wait, and return the function that tells for how long, as the beats say."""
    builder = TopologyBuilder("hosted")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Waits()).shuffle_grouping("spout")
    cluster = InboxCluster(builder.build())
    process = Process(cluster, limit)
    cluster.emit([["sleeper"]])
    return cluster, process, lambda: cluster.inboxes.figures([2])[2].doing_s


@pytest.mark.usefixtures("cluster")
def test_each_beat_says_for_how_long_the_oldest_of_many_calls_waits_and_it_may() -> None:
    cluster, process, age = sleeping(timedelta(seconds=0.05))
    wait_until(lambda: (age() or 0) > 0.5, 10)
    assert acked(cluster, cluster.emit([["quick"]]))
    assert (age() or 0) > 0.5, "it is another call"
    Sleeps.free.set()
    wait_until(lambda: age() is None, 10)
    assert process.died == []
    assert process.end() is None


@pytest.mark.usefixtures("cluster")
def test_a_younger_call_that_is_seen_at_a_beat_does_not_hide_the_oldest() -> None:
    cluster, process, age = sleeping(timedelta(seconds=30))
    wait_until(lambda: (age() or 0) > 0.5, 10)
    ages: list[float] = []
    blocking = cluster.emit([["blocks"]])

    def is_acked() -> bool:
        ages.append(age() or 0)
        return cluster.outcomes(0.01).acked == blocking

    wait_until(is_acked, 20)
    assert min(ages) > 0.5
    Sleeps.free.set()
    wait_until(lambda: age() is None, 10)
    assert process.end() is None


class Days(WindowedBolt):
    window = tumbling(timedelta(days=1))
    output_fields = "word string"

    def execute(self, window, collector):
        """No window closes in these tests."""


@pytest.mark.usefixtures("cluster")
def test_each_beat_says_which_windows_are_open_in_tasks_of_windowed_bolts_only() -> None:
    builder = TopologyBuilder("hosted")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Sleeps()).shuffle_grouping("spout")
    builder.set_bolt("days", Days()).fields_grouping("spout", "word")
    topology = builder.build()
    cluster = InboxCluster(topology)
    [plain], [windowed] = topology.task_ids("bolt"), topology.task_ids("days")
    process = Process(cluster)
    cluster.emit([["a"], ["b"], ["a"]])

    def told() -> OpenWindows | None:
        found = cluster.inboxes.figures([plain, windowed])
        assert found[plain].windows is None
        return found[windowed].windows

    wait_until(lambda: told() == OpenWindows(number=2, tuples=3), 10)
    assert process.end() is None


def test_a_bolt_says_how_long_its_calls_may_last() -> None:
    def limit(timeout: float, **settings: float) -> CallLimit | None:
        builder = TopologyBuilder("t", config=Config(message_timeout_secs=timeout))
        builder.set_spout("spout", Source())
        builder.set_bolt("bolt", Sleeps(), config=settings).shuffle_grouping("spout")
        topology = builder.build()
        return InboxCluster(topology).around.call_limit(topology.task_ids("bolt")[0])

    assert limit(30) is None
    assert limit(30, execute_timeout_secs=3600) == CallLimit(3600, 10)
    assert limit(30, execute_timeout_secs=2) == CallLimit(2, None)


def test_a_call_may_last_as_long_as_messages_live_and_never_less_than_some_seconds() -> None:
    builder = TopologyBuilder("hosted")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Sleeps()).shuffle_grouping("spout")

    def longest(config: Config) -> timedelta | None:
        return InboxCluster(replace(builder.build(), config=config)).around.longest_call

    assert longest(Config(message_timeout_secs=60)) == timedelta(seconds=60)
    assert longest(Config(message_timeout_secs=0.1)) == timedelta(seconds=5)
    assert longest(Config(enable_message_timeouts=False)) is None


class Endless(AsyncBolt):
    """Never ends for one word, and swallows its cancellation."""

    async def execute(self, tup, collector):
        while tup["word"] == "sleeper" and not Sleeps.free.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue


@pytest.mark.parametrize(
    ("bolt", "config"), [(Endless(), {}), (Sleeps(), {"threads": 8})], ids=["async", "threads"]
)
def test_a_call_among_many_that_never_ends_costs_the_process_and_no_other_tuple(
    cluster: InboxCluster, monkeypatch: pytest.MonkeyPatch, bolt: Any, config: dict[str, Any]
) -> None:
    monkeypatch.setattr("tiercel.spark_jobs.running.around._SHORTEST_HANG_S", 0.2)
    builder = TopologyBuilder("hosted")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", bolt, config=config).shuffle_grouping("spout")
    cluster = InboxCluster(replace(builder.build(), config=Config(message_timeout_secs=0.2)))
    guilty, *neighbours = cluster.emit([["sleeper"], *([f"w{number}"] for number in range(20))])
    process = Process(cluster, timedelta(seconds=0.2))
    failed: list[Failure] = []
    assert acked(cluster, neighbours, failed)
    wait_until(lambda: process.died)
    [failure] = [*failed, *cluster.outcomes().failed]
    assert (failure.root, failure.task) == (guilty, 2)
    assert failure.reason == "still executing after 0 s; its process was ended"
    process.end()
    # The next process skips the tuple.
    suspicion = Suspicion(RUN, cluster.book, cluster.ledger)
    cluster.around = replace(cluster.around, suspicion=suspicion)
    [late] = cluster.emit([["late"]])
    successor = Process(cluster)
    assert acked(cluster, [late])
    successor.end()
    assert cluster.ledger.pending() == 0
    assert cluster.inboxes.figures([2])[2].tuples == 0
    Sleeps.free.set()

"""A failed tuple is retried in its place, but not for ever, since its successors wait for it.

Other tuples that the task holds rest meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.pump import Killed, Pump, Source
from tiercel import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Config,
    QueueSpout,
    RetryPolicy,
    Spout,
    TopologyBuilder,
)
from tiercel.acker.ledger import Failure
from tiercel.spark_jobs.kinds.calls.flight import MOST_HELD_BACK
from tiercel.workers.testing.engine import SimulatedClock

SOON_S = 0.5


class Known:
    """Plan and record of the bolts of one test."""

    def __init__(self) -> None:
        # Key and number of each tuple that fails, for ever or once.
        self.fail: set[tuple[str, int]] = {("k", 1)}
        self.lasts_s: dict[tuple[str, int], float] = {}
        self.began: list[tuple[str, int]] = []

    def begin(self, tup: Any) -> float:
        key, number = tup.values
        self.began.append((key, number))
        if (key, number) in self.fail:
            raise ValueError(f"{key} {number} fails")
        return self.lasts_s.get((key, number), 0.0)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the failing key that began."""
        return [number for key, number in self.began if key == "k"]


class Called(AsyncBolt):
    known: ClassVar[Known]

    async def execute(self, tup, collector):
        await asyncio.sleep(self.known.begin(tup))


class Plain(BasicBolt):
    known: ClassVar[Known]

    def execute(self, tup, collector):
        self.known.begin(tup)


class GivenBack(Source):
    def release(self, msg_id: Any) -> None:
        pass


@dataclass
class Heard:
    """The outcomes that the spout has heard so far."""

    acked: list[int] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


class Book(MemoryCaseBook):
    """A dead process writes nothing."""

    alive = True

    def note(self, token, doing):
        if self.alive:
            super().note(token, doing)


class Stage:
    """One ordered task, on a clock moved by the test."""

    def __init__(
        self, bolt: Any, config: dict[str, Any], known: Known, spout: Spout | None = None
    ) -> None:
        builder = TopologyBuilder("order", Config(message_timeout_secs=30))
        builder.set_spout("spout", spout or GivenBack("key string, number long"))
        builder.set_bolt(
            "bolt", bolt, config={"ordered_by": "key", "execute_timeout_secs": 600, **config}
        ).fields_grouping("spout", "key")
        self.known = known
        self.clock = SimulatedClock()
        self.book = Deadly.book = Book()
        self.pump = Pump(builder.build(), simulated=self.clock, book=self.book)
        self.roots: list[int] = []
        self.outcomes = Heard()

    def send(self, *numbers: int, key: str = "k", tracked: bool = True) -> None:
        """Send one message after the other, before the task looks."""
        for number in numbers:
            self.roots += self.pump.feed([key, number], tracked=tracked)
            self.pump.send()

    def feed(self, *numbers: int, key: str = "k", tracked: bool = True) -> None:
        self.send(*numbers, key=key, tracked=tracked)
        self.pump.work()

    def pass_time(self, seconds: float) -> None:
        """Let the task work on. It always knows its next time to act, which lies ahead."""
        end = self.clock.after(seconds)
        while self.clock() < end:
            self.clock.move_to(min(end, self.clock.after(SOON_S)))
            self.pump.work()
            for attempt in self.pump.attempts.values():
                assert attempt.next_at is None or attempt.next_at > self.clock()
            self._hear()

    def die_until_it_works(self) -> None:
        """Let processes of the task die of a tuple until one of them knows the tuple."""
        for _ in range(4):
            with suppress(Killed):
                self.pump.work()
                return
            self.book.alive = True
            self.pump.take_over()
        pytest.fail("it dies for ever")

    def _hear(self) -> None:
        told = self.pump.feeds[0].read(timedelta(0))
        self.outcomes.acked += told.acked
        self.outcomes.failed += told.failed
        self.outcomes.released += told.released
        self.outcomes.waiting += told.waiting

    def close(self) -> None:
        for attempt in self.pump.attempts.values():
            attempt.close()


KINDS = {
    "plain": (Plain(), {}),
    "async": (Called(), {}),
    "threads": (Plain(), {"threads": 3}),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    bolt, config = request.param
    with closing(staged(bolt, config)) as stage:
        yield stage


def staged(bolt: Any, config: dict[str, Any], spout: Spout | None = None) -> Stage:
    known = Plain.known = Called.known = Batched.known = Known()
    return Stage(bolt, config, known, spout)


LIMIT = 20


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


def test_a_tuple_is_tried_again_in_its_place_and_then_rejected(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.feed(1)
    stage.feed(2, 3)
    stage.feed(1, key="other")
    assert stage.known.began == [("k", 1), ("other", 1)]
    stage.pass_time(140)
    assert set(stage.known.numbers) == {1}
    assert not stage.outcomes.failed
    stage.pass_time(30)
    assert stage.known.numbers == [*[1] * (LIMIT + 1), 2, 3]
    [failure] = stage.outcomes.failed
    assert failure.reject
    assert failure.reason.startswith("failed 21 times: ValueError: k 1 fails")
    assert (len(stage.outcomes.acked), stage.outcomes.released) == (3, [])
    assert events(caplog).count("order_given_up") == 1


def test_the_waits_grow_from_the_first_to_the_longest(stage: Stage) -> None:
    stage.feed(1)
    began = []
    for _ in range(400):
        began += [stage.clock()] * (len(stage.known.numbers) - len(began))
        stage.pass_time(0.1)
    waits = [after - before for before, after in pairwise(began)]
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0], abs=0.21)


def test_the_spout_says_how_often_and_after_which_waits() -> None:
    second = timedelta(seconds=1)
    retry = RetryPolicy(first=second, longest=second)
    fields = "key string, number long"
    spout = QueueSpout("orders", fields, format="json", delivery_limit=2, retry=retry)
    with closing(staged(Plain(), {}, spout)) as stage:
        stage.feed(1)
        stage.pass_time(1.9)
        assert stage.known.numbers == [1, 1]
        stage.pass_time(5)
        assert stage.known.numbers == [1, 1, 1]
        assert [failure.reject for failure in stage.outcomes.failed] == [True]


def test_messages_do_not_time_out_between_two_attempts(stage: Stage) -> None:
    stage.feed(1)
    stage.feed(2)
    told = {root: [stage.clock()] for root in stage.roots}
    assert len(told) == 2
    for _ in range(120):
        stage.outcomes.waiting.clear()
        stage.pass_time(1)
        for root in stage.outcomes.waiting:
            told[root].append(stage.clock())
    for times in told.values():
        # The bound is a third of the timeout.
        assert max(after - before for before, after in pairwise(times)) <= 11


def test_the_attempts_of_all_processes_count(stage: Stage) -> None:
    stage.feed(1)
    for _ in range(10):
        stage.pass_time(10)
        stage.close()
        stage.pump.take_over()
    stage.pass_time(170)
    assert stage.known.numbers == [1] * (LIMIT + 1)
    assert [failure.reject for failure in stage.outcomes.failed] == [True]


def test_a_tuple_that_succeeds_in_time_counts_anew(stage: Stage) -> None:
    for number in (1, 2):
        stage.known.fail = {("k", number)}
        stage.feed(number)
        stage.pass_time(100)
        stage.known.fail.clear()
        stage.pass_time(20)
    assert len(stage.outcomes.acked) == 2
    assert stage.known.numbers.count(2) > LIMIT / 2


def test_a_task_rests_while_a_tuple_that_failed_waits_for_a_place() -> None:
    with closing(staged(Called(), {"concurrency": 2})) as stage:
        stage.feed(1)
        stage.feed(2)
        stage.known.fail.clear()
        stage.known.lasts_s = {("a", 1): 90.0, ("b", 1): 90.0}
        stage.feed(1, key="a")
        stage.feed(1, key="b")
        stage.pass_time(80)
        assert stage.known.numbers == [1]
        stage.pass_time(20)
        assert stage.known.numbers == [1, 1, 2]


def test_the_others_wait_while_it_is_under_way() -> None:
    with closing(staged(Called(), {})) as stage:
        stage.feed(1)
        stage.feed(2, 3)
        stage.known.fail.clear()
        stage.known.lasts_s = {("k", 1): 150.0}
        stage.pass_time(140)
        assert stage.known.numbers == [1, 1]
        stage.pass_time(60)
        assert stage.known.numbers == [1, 1, 2, 3]


def test_the_next_process_begins_with_the_tuple_that_failed(stage: Stage) -> None:
    stage.feed(1)
    stage.feed(2, 3)
    stage.known.fail.clear()
    stage.clock.move_to(stage.clock.after(70))
    stage.close()
    stage.pump.take_over()
    stage.pass_time(10)
    assert stage.known.numbers == [1, 1, 2, 3]


def test_a_tuple_in_no_tree_keeps_its_place_and_is_not_tried_again(stage: Stage) -> None:
    """The failure of an untracked tuple is always final."""
    stage.feed(1)
    stage.feed(2, tracked=False)
    stage.feed(3)
    stage.feed(4, tracked=False)
    stage.known.fail = {("k", 1), ("k", 2)}
    stage.pass_time(10)
    stage.known.fail = {("k", 2)}
    stage.pass_time(10)
    assert stage.known.numbers[-4:] == [1, 2, 3, 4]
    assert stage.known.numbers.count(2) == 1


class Deadly(Plain):
    """Kills its process at the tuples that are to fail."""

    book: ClassVar[Book]

    def execute(self, tup, collector):
        try:
            super().execute(tup, collector)
        except ValueError as error:
            self.book.alive = False
            raise Killed from error


def test_successors_of_a_deadly_tuple_wait_until_its_message_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(staged(Deadly(), {})) as stage:
        stage.send(1, 2)
        stage.die_until_it_works()
        stage.pass_time(10)
        assert set(stage.known.numbers) == {1}
        [failure] = stage.outcomes.failed
        assert not failure.reject
        stage.known.fail.clear()
        before = len(stage.known.numbers)
        stage.feed(1)
        assert stage.known.numbers[before:] == [1, 2]
        # Or until the tuple is no longer awaited.
        stage.known.fail = {("k", 3)}
        stage.send(3, 4)
        stage.die_until_it_works()
        stage.pass_time(70)
        assert stage.known.numbers[-1] == 4
        assert events(caplog).count("order_given_up") == 1


class Batched(BatchBolt):
    size = 500
    wait_ms = 5_000
    known: ClassVar[Known]

    def execute_batch(self, tuples, collector):
        self.known.began += [tup.values for tup in tuples]


def test_a_batch_waits_for_no_company_where_no_more_is_taken() -> None:
    """All waiting tuples belong to one key, and the task holds as many of them as it may."""
    with closing(staged(Batched(), {})) as stage:
        many = MOST_HELD_BACK + 2
        stage.pump.feed(*[["k", number] for number in range(many)])
        stage.pump.send()
        [attempt] = stage.pump.attempts.values()
        assert attempt.turn()
        assert attempt.turn()
        assert stage.known.numbers == [0, 1]

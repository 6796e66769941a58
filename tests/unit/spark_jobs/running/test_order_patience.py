"""Patience with a tuple that failed: its successors are held for as long as it may still come, and
not without end. A task that holds some rests meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar

import pytest

from tests.support.pump import Pump, Source
from tiercel import AsyncBolt, BasicBolt, BatchBolt, Config, TopologyBuilder
from tiercel.spark_jobs.kinds.calls.flight import MOST_HELD_BACK
from tiercel.workers.testing.engine import SimulatedClock

SOON_S = 0.5


class Known:
    """Things that the bolts of one test are to do, and did."""

    def __init__(self) -> None:
        # Keys and numbers of those that fail for ever, or once.
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
        """Numbers that began, of the key that fails."""
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


class Stage:
    """One ordered task, on a clock that the test moves."""

    def __init__(self, bolt: Any, config: dict[str, Any], known: Known) -> None:
        builder = TopologyBuilder("order", Config(message_timeout_secs=30))
        builder.set_spout("spout", GivenBack("key string, number long"))
        builder.set_bolt(
            "bolt", bolt, config={"ordered_by": "key", "execute_timeout_secs": 600, **config}
        ).fields_grouping("spout", "key")
        self.known = known
        self.clock = SimulatedClock()
        self.pump = Pump(builder.build(), simulated=self.clock)

    def send(self, *numbers: int, key: str = "k", tracked: bool = True) -> None:
        """One message after the other; the task has not looked yet."""
        for number in numbers:
            self.pump.feed([key, number], tracked=tracked)
            self.pump.send()

    def feed(self, *numbers: int, key: str = "k", tracked: bool = True) -> None:
        self.send(*numbers, key=key, tracked=tracked)
        self.pump.work()

    def pass_time(self, seconds: float) -> None:
        """Let the task work on. It always knows when it is to go on, and that lies ahead."""
        end = self.clock.after(seconds)
        while self.clock() < end:
            self.clock.move_to(min(end, self.clock.after(SOON_S)))
            self.pump.work()
            for attempt in self.pump.attempts.values():
                assert attempt.next_at is None or attempt.next_at > self.clock()

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


def staged(bolt: Any, config: dict[str, Any]) -> Stage:
    known = Plain.known = Called.known = Batched.known = Known()
    return Stage(bolt, config, known)


def test_a_task_rests_when_nothing_comes_after_what_was_given_up(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.feed(1)
    stage.pass_time(70)
    assert [record.event for record in caplog.records if hasattr(record, "event")].count(
        "order_given_up"
    ) == 1


def test_a_task_rests_when_what_it_gave_back_does_not_come_again(stage: Stage) -> None:
    stage.feed(1)
    stage.feed(2)
    stage.pass_time(70)
    assert stage.known.numbers == [1]
    stage.feed(2)
    assert stage.known.numbers == [1, 2]


def test_a_task_rests_while_what_came_again_waits_for_a_place() -> None:
    with closing(staged(Called(), {"concurrency": 2})) as stage:
        stage.feed(1)
        stage.feed(2)
        stage.known.fail.clear()
        stage.known.lasts_s = {("a", 1): 90.0, ("b", 1): 90.0}
        stage.feed(1, key="a")
        stage.feed(1, key="b")
        stage.feed(1)
        # Longer than anything is awaited.
        stage.pass_time(80)
        assert stage.known.numbers == [1]
        stage.pass_time(20)
        assert stage.known.numbers == [1, 1, 2]


def test_what_came_again_is_not_given_up_while_it_is_under_way() -> None:
    with closing(staged(Called(), {})) as stage:
        stage.feed(1)
        stage.feed(2, 3)
        stage.pass_time(2.5)
        stage.known.fail.clear()
        stage.known.lasts_s = {("k", 1): 150.0}
        # They were given back, and come again in another order.
        stage.feed(3)
        stage.feed(2)
        stage.feed(1)
        stage.pass_time(200)
        assert stage.known.numbers == [1, 1, 2, 3]


def test_what_a_process_died_of_is_in_the_inbox_of_the_next_one(stage: Stage) -> None:
    stage.feed(1)
    stage.feed(2, 3)
    stage.pass_time(2.5)
    stage.known.fail.clear()
    stage.send(3, 2, 1)
    # For so long its process was in the call.
    stage.clock.move_to(stage.clock.after(70))
    stage.close()
    stage.pump.take_over()
    stage.pass_time(10)
    assert stage.known.numbers == [1, 1, 2, 3]


def test_what_is_in_no_tree_keeps_its_place_and_is_not_given_back(stage: Stage) -> None:
    """It would not come again."""
    stage.feed(1)
    stage.feed(2, tracked=False)
    stage.feed(3)
    stage.feed(4, tracked=False)
    stage.pass_time(10)
    stage.known.fail.clear()
    # Both were given back.
    stage.feed(3)
    stage.feed(1)
    stage.pass_time(10)
    assert stage.known.numbers == [1, 1, 2, 3, 4]


class Batched(BatchBolt):
    size = 500
    wait_ms = 5_000
    known: ClassVar[Known]

    def execute_batch(self, tuples, collector):
        self.known.began += [tup.values for tup in tuples]


def test_a_batch_waits_for_no_company_where_no_more_is_taken() -> None:
    """All that there is belongs to one key, and as much of it is held as may be."""
    with closing(staged(Batched(), {})) as stage:
        many = MOST_HELD_BACK + 2
        stage.pump.feed(*[["k", number] for number in range(many)])
        stage.pump.send()
        [attempt] = stage.pump.attempts.values()
        assert attempt.turn()
        assert attempt.turn()
        assert stage.known.numbers == [0, 1]

"""``WindowedBolt.once``: each window has one result, equal to that of a batch, although processes
die at each effect of their commits, spouts die, bolts behind fail, and new runs begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tests.support.pump import Pump, Source, killed_after
from tests.support.windowed import (
    FIELDS,
    START,
    Overlapping,
    Row,
    Tumbling,
    Visits,
    batch,
    closers,
    events,
    rows_of,
)
from tiercel import (
    Session,
    Sliding,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    TopologyError,
    WindowedBolt,
    tumbling,
)
from tiercel.queues.message.identity import Identity
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.memory import MemoryStateStore

EVENTS = 60
APART = timedelta(milliseconds=500)
_EFFECTS = 24


class OnceTumbling(Tumbling):
    once = True


class OnceOverlapping(Overlapping):
    once = True


class OnceVisits(Visits):
    once = True


BOLTS = {"tumbling": OnceTumbling, "sliding": OnceOverlapping, "session": OnceVisits}


class Fails:
    """Which results fail in the bolts behind: the same ones if a step is repeated."""

    seed = 0
    # Changes with each turn of the play; None: none fails.
    turn: int | None = None

    @classmethod
    def look(cls, values: Any) -> None:
        if cls.turn is not None and Random(f"{cls.seed} {cls.turn} {values}").random() < 0.2:
            raise ValueError("the bolt behind fails")


class Book(StatefulBolt):
    """Counts each result once."""

    once = True

    def execute(self, tup, collector):
        Fails.look(tup.values)
        self.state.increment(tuple(tup.values))


class EachBook(StatefulBolt):
    """Counts each result as often as it comes."""

    def execute(self, tup, collector):
        Fails.look(tup.values)
        self.state.increment(tuple(tup.values))


@pytest.fixture(autouse=True)
def _no_failures() -> Iterator[None]:
    yield
    Fails.turn = None


def topology(bolts: dict[str, type[WindowedBolt]] | None = None) -> Topology:
    builder = TopologyBuilder("windows")
    builder.set_spout("events", Source(FIELDS))
    book = builder.set_bolt("book", Book(), parallelism=2)
    each = builder.set_bolt("each", EachBook(), parallelism=2)
    for name, bolt in (bolts or BOLTS).items():
        builder.set_bolt(name, bolt(), parallelism=2).fields_grouping("events", "key")
        book.fields_grouping(name, "key")
        each.fields_grouping(name, "key")
    return builder.build()


class Broker:
    """A queue in front of a pump: keeps messages until they are acked, and delivers them again."""

    def __init__(self, built: Topology) -> None:
        self.topology = built
        self.run_number = 1
        self.pump = Pump(built)
        # Messages that are not acked, by number, and the number of the newest delivery of each.
        self.waiting: dict[int, list[Any]] = {}
        self.numbers: dict[int, int] = {}
        self.deliveries: dict[int, int] = {}
        self.acked: set[int] = set()
        self.reasons: list[str] = []
        self._seen = 0

    def publish(self, *rows: list[Any]) -> None:
        for row in rows:
            self.waiting[row[0]] = row
        self.deliver([row[0] for row in rows])

    def deliver(self, numbers: list[int]) -> None:
        """Deliver messages, again or for the first time."""
        rows = [self.waiting[number] for number in numbers]
        identities = [Identity(str(number).encode(), 1 << 64 | number) for number in numbers]
        roots = self.pump.feed(*rows, identities=identities)
        self.numbers |= dict(zip(roots, numbers, strict=True))
        self.deliveries |= dict(zip(numbers, roots, strict=True))
        self.pump.send()

    def settle(self) -> None:
        """Take acks and failures, and deliver again what has failed."""
        Fails.turn = None if Fails.turn is None else Fails.turn + 1
        pump = self.pump
        pump.read()
        for root in pump.acked[self._seen :]:
            number = self.numbers[root]
            if self.deliveries[number] == root and number in self.waiting:
                self.acked.add(number)
                del self.waiting[number]
        self._seen = len(pump.acked)
        failed, again = dict(pump.failed), []
        for root, reason in failed.items():
            number = self.numbers.get(root)
            if number is not None and self.deliveries[number] == root and number in self.waiting:
                self.reasons.append(reason)
                again.append(number)
        pump.failed.clear()
        if again:
            self.deliver(sorted(again, key=list(self.waiting).index))

    def spout_dies(self, draw: Random) -> None:
        """Deliver some messages again, as if a spout worker that held them had died."""
        held = [number for number in self.waiting if draw.random() < 0.5]
        if held:
            self.deliver(held)

    def new_run(self) -> None:
        """The driver or Redis begins anew: all messages that are not acked come again."""
        self.run_number += 1
        state = MemoryStateStore(self.run_number, self.pump.state)
        self.pump = Pump(self.topology, state=state, run=str(self.run_number))
        self._seen = 0
        self.numbers.clear()
        if self.waiting:
            self.deliver(list(self.waiting))

    def work(self, kill_after: int | None = None) -> None:
        if kill_after is None:
            while self.pump.work():
                continue
        else:
            with killed_after(kill_after):
                self.pump.work()
            self.pump.take_over()
        self.settle()

    def finish(self) -> None:
        """Work until all messages are acked but those that close the windows."""
        Fails.turn = None
        for _ in range(20):
            self.work()

    def booked(self, bolt: str = "book") -> dict[Row, int]:
        entries = self.pump.state.entries(bolt)
        found = {decode_key(key): decode_value(raw) for key, raw in entries}
        return {row: count for row, count in found.items() if not row[1].startswith("closes")}


def check(broker: Broker, frame: Any) -> None:
    """Each window came once, and equals that of the batch; nothing was late; all is acked."""
    expected = dict.fromkeys(batch(frame), 1)
    assert broker.booked() == expected
    assert broker.booked("each").keys() == expected.keys()
    assert [reason for reason in broker.reasons if "fails" not in reason] == []
    assert broker.acked == set(range(EVENTS))


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_no_result_is_repeated(seed: int) -> None:
    frame = events(EVENTS, seed=seed, apart=APART)
    broker = Broker(topology())
    for row in rows_of(frame):
        broker.publish(row)
        broker.work()
    broker.publish(*rows_of(closers(frame)))
    broker.finish()
    check(broker, frame)
    assert set(broker.booked("each").values()) == {1}


def play(seed: int, *, effects: int | None, fails: bool, spouts: bool, runs: bool) -> None:
    draw = Random(seed)
    frame = events(EVENTS, seed=seed, apart=APART)
    broker = Broker(topology())
    if fails:
        Fails.seed, Fails.turn = seed, 0
    rows = rows_of(frame)
    ends = rows_of(closers(frame))
    while rows or ends or draw.random() < 0.7:
        some = draw.randint(1, 20)
        if rows:
            broker.publish(*rows[:some])
            rows = rows[some:]
        elif ends:
            broker.publish(*ends)
            ends = []
        broker.work(effects)
        if spouts and draw.random() < 0.3:
            broker.spout_dies(draw)
        if runs and draw.random() < 0.3:
            broker.new_run()
    broker.finish()
    check(broker, frame)


@pytest.mark.parametrize("seed", range(3))
def test_a_bolt_behind_that_fails_gets_the_result_again(seed: int) -> None:
    play(seed, effects=None, fails=True, spouts=False, runs=False)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_come_again_after_a_spout_died_are_counted_once(seed: int) -> None:
    play(seed, effects=None, fails=False, spouts=True, runs=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_new_run_repeats_no_window(seed: int) -> None:
    play(seed, effects=None, fails=False, spouts=False, runs=True)


@pytest.mark.parametrize("effects", range(_EFFECTS))
def test_whatever_dies_each_window_has_one_result(effects: int) -> None:
    play(effects, effects=effects, fails=True, spouts=True, runs=True)


def fed(broker: Broker, *rows: tuple[int, str, float]) -> None:
    """Publish events: their number, key, and seconds since the start; and let all work."""
    broker.publish(*([number, key, START + timedelta(seconds=at), 1] for number, key, at in rows))
    broker.work()


@pytest.mark.parametrize("new_run", [False, True])
def test_a_message_that_comes_first_after_its_window_has_closed_is_late(new_run: bool) -> None:
    broker = Broker(topology({"tumbling": OnceTumbling}))
    fed(broker, (1, "a", 1), (2, "a", 5), (3, "a", 30))
    assert broker.acked == {1, 2}
    if new_run:
        broker.new_run()
        broker.work()
    fed(broker, (4, "a", 6))
    [reason] = set(broker.reasons)
    assert "late: its timestamp" in reason
    assert 4 in broker.waiting
    assert list(broker.booked().values()) == [1]


def test_a_message_with_another_body_is_no_repeat() -> None:
    broker = Broker(topology({"tumbling": OnceTumbling}))
    fed(broker, (1, "a", 1), (3, "a", 30))
    assert broker.acked == {1}
    row = [1, "a", START + timedelta(seconds=1), 2]
    [root] = broker.pump.feed(row, identities=[Identity(b"1", 1 << 65)])
    broker.pump.run()
    assert "a different body was already processed" in broker.pump.failed[root]


def test_a_message_without_identity_is_counted_and_named_in_the_errors() -> None:
    pump = Pump(topology({"tumbling": OnceTumbling}))
    [root, _] = pump.feed([1, "a", START, 1], [2, "a", START + timedelta(seconds=30), 1])
    pump.run()
    assert pump.acked == [root]
    errors = [one.message for one in pump.metrics.errors() if one.component == "tumbling"]
    assert len([error for error in errors if "a message without an identity" in error]) == 1


class OnceLonger(OnceTumbling):
    window = tumbling(timedelta(seconds=20))


class OnceShorter(OnceTumbling):
    window = tumbling(timedelta(seconds=5))


UPGRADES = {"longer": OnceLonger, "shorter": OnceShorter} | BOLTS


@pytest.mark.parametrize("before", BOLTS)
@pytest.mark.parametrize("after", UPGRADES)
def test_an_upgrade_to_another_window_repeats_the_results_of_closed_ones(
    before: str, after: str
) -> None:
    """The windows have closed; their results wait."""
    first, second = (topology({"bolt": kind}) for kind in (BOLTS[before], UPGRADES[after]))
    broker = Broker(first)
    rows = [[n, "a", START + timedelta(seconds=at), 1] for n, at in ((1, 0), (2, 4), (3, 70))]
    broker.publish(*rows)
    broker.pump.work_at("bolt")
    broker.settle()
    assert broker.acked == set()
    expected = {tuple(values) for values in broker.pump.rows("book")}
    broker.topology = second
    broker.new_run()
    broker.finish()
    assert broker.acked >= {1, 2}
    assert broker.reasons == []
    assert broker.booked().keys() >= expected
    assert sum(row[3] for row in broker.booked()) == sum(row[3] for row in expected)


def test_a_message_whose_result_is_not_found_becomes_a_dead_letter() -> None:
    """The bolt before has given it another key: it is not acked without a result."""
    broker = Broker(topology({"tumbling": OnceTumbling}))
    fed(broker, (1, "a", 1), (3, "a", 30))
    assert broker.acked == {1}
    row = [1, "b", START + timedelta(seconds=1), 1]
    [root] = broker.pump.feed(row, identities=[Identity(b"1", 1 << 64 | 1)])
    broker.pump.run()
    assert "whose result cannot be found" in broker.pump.failed[root]


class OnceMany(OnceOverlapping):
    window = Sliding(timedelta(seconds=2_000), timedelta(seconds=1))


def test_open_windows_are_not_looked_up_again_however_many_there_are() -> None:
    """Each task has 240,000: each second a tuple comes to one more window of its key."""
    broker = Broker(topology({"sliding": OnceMany}))
    asked: list[int] = []
    for task in broker.topology.task_ids("sliding"):
        order = broker.pump.attempts[task].kind._order
        order.recall = counting(order.recall, asked)
    for second in range(3):
        asked.clear()
        rows = [(240 * second + n, f"key-{n}", second) for n in range(240)]
        broker.publish(*([n, key, START + timedelta(seconds=at), 1] for n, key, at in rows))
        broker.pump.work_at("sliding")
    assert 0 < sum(asked) <= 2 * 240


def counting(recall: Any, asked: list[int]) -> Any:
    def count(names: Sequence[bytes]) -> Any:
        asked.append(len(names))
        return recall(names)

    return count


class Tens(WindowedBolt):
    """Windows of three tuples."""

    window = tumbling(3)
    output_fields = "bolt string, key string, start long, events long, cents long"
    once = True

    def execute(self, window, collector):
        numbers = sorted(tup["id"] for tup in window)
        collector.emit(["tens", window.key, numbers[0], len(window), sum(numbers)])


class Now(Tens):
    window = Session(timedelta(milliseconds=1))


@pytest.mark.parametrize("bolt", [Tens, Now])
def test_windows_that_do_not_follow_from_timestamps_are_repeated(bolt: type[WindowedBolt]) -> None:
    broker = Broker(topology({"tens": bolt}))
    Fails.turn = 0
    for number in range(0, 30, 3):
        fed(broker, *((number + more, "a", number) for more in range(3)))
    for _ in range(3):
        broker.new_run()
        broker.work()
    broker.finish()
    assert broker.acked == set(range(30))
    assert [one for one in broker.reasons if "fails" not in one] == []
    found = broker.booked()
    assert set(found.values()) == {1}
    assert sum(events for _, _, _, events, _ in found) == 30
    assert sum(total for *_, total in found) == sum(range(30))


class Retained(OnceTumbling):
    once_retention = timedelta(minutes=1)


class Expired(OnceOverlapping):
    tells_expired = True


class OverTuples(OnceOverlapping):
    window = Sliding(10, 5)


class OverNow(OnceOverlapping):
    timestamp_field = ""


class Together(OnceTumbling):
    keyed = False


@pytest.mark.parametrize(
    ("bolt", "said"),
    [
        (Retained, "its windows hold a message for 0:01:38: raise once_retention"),
        (Expired, "set one of the two"),
        (OverTuples, "its windows overlap and begin anew with each run"),
        (OverNow, "its windows overlap and begin anew with each run"),
        (Together, r"subscribe by \.fields_grouping, or set parallelism=1"),
    ],
)
def test_a_bolt_that_cannot_be_once_is_refused(bolt: type[WindowedBolt], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        topology({"refused": bolt})

"""A bolt with ``once``: each tuple of a message is applied to its state once."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import BasicProperties

from tests.support.pump import Pump, Source, killed_after
from tests.support.waiting import wait_until
from tiercel import BasicBolt, StatefulBolt, TopologyBuilder
from tiercel.acker.metrics.contract import ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.message.identity import Identity, identity_reader
from tiercel.spark_jobs.process.host import BoltTask
from tiercel.spark_jobs.state.memory import MemoryStateStore


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup["line"].split():
            collector.emit([word])


class Count(StatefulBolt):
    output_fields = "word string, n long"
    once = True

    def execute(self, tup, collector):
        collector.emit([tup["word"], self.state.increment(tup["word"])])
        if tup["word"] == "bad":
            raise RuntimeError("bad")


class Plain(Count):
    once = False


class Receive(BasicBolt):
    """Records its tuples, and fails the first ``fail_first`` of them."""

    received: list[Any] = []  # noqa: RUF012 - shared by all copies
    fail_first = 0

    def execute(self, tup, collector):
        self.received.append((*tup.values, tup.key))
        if Receive.fail_first:
            Receive.fail_first -= 1
            raise RuntimeError("later")


@pytest.fixture(autouse=True)
def _afresh():
    Receive.received.clear()
    Receive.fail_first = 0


def topology(bolt: Any = None, parallelism: int = 1):
    builder = TopologyBuilder("once")
    builder.set_spout("lines", Source("line string"))
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("count", bolt or Count(), parallelism).fields_grouping("split", "word")
    builder.set_bolt("end", Receive()).shuffle_grouping("count")
    return builder.build()


def counts(pump: Pump) -> dict[str, int]:
    return {field.decode().strip('"'): int(value) for field, value in pump.state.entries("count")}


def counted(pump: Pump, component: str = "count") -> Counter:
    found: Counter = Counter()
    for task in pump.metrics.totals().get(component, {}).values():
        found.update(task)
    return found


def send(pump: Pump, *messages: tuple[Any, str]) -> None:
    pump.feed(*([line] for _, line in messages), identities=[one for one, _ in messages])
    pump.run()


def test_a_message_that_comes_again_changes_no_state_and_those_below_get_what_they_got() -> None:
    pump = Pump(topology())
    send(pump, ("1", "a b a"), ("2", "b"))
    first = sorted(Receive.received)
    assert first[0][:2] == ("a", 1)
    assert counts(pump) == {"a": 2, "b": 2}
    Receive.received.clear()
    send(pump, ("2", "b"), ("1", "a b a"))
    assert sorted(Receive.received) == first
    assert counts(pump) == {"a": 2, "b": 2}
    assert len(pump.acked) == 4
    assert counted(pump)[ONCE_REPEATED] == 4


def test_without_once_it_counts_again() -> None:
    pump = Pump(topology(Plain()))
    for _ in range(2):
        send(pump, ("1", "a b a"))
    assert counts(pump) == {"a": 4, "b": 2}
    assert not {ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE} & counted(pump).keys()


def test_a_message_that_failed_below_is_counted_once() -> None:
    Receive.fail_first = 1
    pump = Pump(topology())
    send(pump, ("1", "a b a"))
    assert list(pump.failed.values()) == ["end: RuntimeError: later"]
    send(pump, ("1", "a b a"))
    assert counts(pump) == {"a": 2, "b": 1}
    assert len(pump.acked) == 1


def test_what_no_bolt_receives_is_not_kept() -> None:
    builder = TopologyBuilder("last")
    builder.set_spout("lines", Source("line string"))
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("count", Count()).fields_grouping("split", "word")
    pump = Pump(builder.build())
    for _ in range(2):
        send(pump, ("1", "a b a bad"))
    assert counts(pump) == {"a": 2, "b": 1}
    assert counted(pump)[ONCE_REPEATED] == 3
    marks = pump.state._components["count"].marks
    assert [len(record) for _, record in marks.values()] == [16] * 3


def test_two_copies_of_a_message_in_one_step_count_once() -> None:
    pump = Pump(topology())
    send(pump, ("1", "a b"), ("1", "a b"), ("2", "a"), ("1", "a b"))
    assert counts(pump) == {"a": 2, "b": 1}
    assert Counter(Receive.received).most_common(1)[0][1] == 3


def test_a_tuple_that_raised_was_not_applied() -> None:
    pump = Pump(topology())
    send(pump, ("1", "a bad"))
    assert counts(pump) == {"a": 1}
    assert not [one for one in Receive.received if one[0] == "bad"]
    send(pump, ("1", "a bad"))
    assert counts(pump) == {"a": 1}
    assert counted(pump)[ONCE_REPEATED] == 1
    assert len(pump.failed) == 2


def test_a_message_without_an_identity_counts_each_time_and_is_counted() -> None:
    pump = Pump(topology())
    for _ in range(2):
        send(pump, (None, "a b"), ("1", "b"))
    assert counts(pump) == {"a": 2, "b": 3}
    assert counted(pump)[ONCE_UNKEYED] == 4
    [said] = {error.message for error in pump.metrics.errors(10)}
    assert said == (
        "a message without an identity was applied, and will be applied again if it is delivered "
        "again: publish each message with the id or header that QueueSpout(identity=…) names"
    )


def test_another_message_with_the_same_identity_fails_with_the_reason() -> None:
    pump = Pump(topology())
    send(pump, (Identity(b"1", content=5), "a"))
    send(pump, (Identity(b"1", content=6), "b"), (Identity(b"2", content=6), "c"))
    # The word differs and the key is the same: the message's content shows the difference.
    assert counts(pump) == {"a": 1, "c": 1}
    [reason] = pump.failed.values()
    assert "a message with the same identity but a different body" in reason
    send(pump, (Identity(b"1", content=5), "a"), (Identity(b"1"), "a"))
    assert counts(pump) == {"a": 1, "c": 1}


@pytest.mark.parametrize("first", ["stranger", "genuine"])
def test_a_second_body_with_the_same_32_bits_does_not_swallow_a_message(first) -> None:
    """Such a body can be found in a minute; before the fix the genuine message was acked as a
    repeat of it.
    """
    read = identity_reader("message_id")
    bodies = {
        "stranger": b'{"order_id":"order-17","customer":"mallory","cents":1,"n":"49834"}',
        "genuine": b'{"order_id":"order-17","customer":"alice","cents":10000,"n":"8334"}',
    }
    shorts = {blake2b(body, digest_size=4).digest() for body in bodies.values()}
    assert len(shorts) == 1
    identities = {
        name: read(Delivery(1, 1, body, 0, BasicProperties(message_id="order-17")))
        for name, body in bodies.items()
    }
    pump = Pump(topology())
    for name in sorted(bodies, key=lambda name: name != first):
        send(pump, (identities[name], name))
    assert counts(pump) == {first: 1}
    [reason] = pump.failed.values()
    assert "a message with the same identity but a different body" in reason


def test_a_message_older_than_what_is_remembered_is_counted_and_told() -> None:
    now = int(datetime.now(UTC).timestamp())
    pump = Pump(topology())
    send(pump, (Identity(b"1", since=now - 3600), "a"))
    assert counted(pump)[ONCE_UNSURE] == 0
    send(pump, (Identity(b"2", since=now - 2 * 86_400), "a b"))
    assert counts(pump) == {"a": 2, "b": 1}
    assert counted(pump)[ONCE_UNSURE] == 2
    [error] = pump.metrics.errors()
    assert "older than the remembered keys" in error.message
    # A remembered message is never in doubt, however old it is.
    send(pump, (Identity(b"2", since=now - 2 * 86_400), "a b"))
    assert counts(pump) == {"a": 2, "b": 1}
    assert counted(pump)[ONCE_UNSURE] == 2


class Emits(StatefulBolt):
    """Emits the given value, or sample values of all types."""

    output_streams = {"default": "n long, text string", "side": "raw binary, l array<int>"}  # noqa: RUF012
    direct_streams = frozenset({"side"})
    once = True
    said: Any = 7

    def prepare(self, config, context):
        self.end = context.component_tasks("end")[-1]

    def execute(self, tup, collector):
        self.state.increment("executed")
        raw = bytearray(b"\xff")
        collector.emit_direct(self.end, [raw, [1, None]], stream="side")
        raw[0] = 0
        collector.emit([Emits.said, "t"])


def emitting(parallelism: int = 1):
    builder = TopologyBuilder("emits")
    builder.set_spout("lines", Source("line string"))
    builder.set_bolt("count", Emits()).shuffle_grouping("lines")
    end = builder.set_bolt("end", Receive(), parallelism).shuffle_grouping("count")
    end.direct_grouping("count", stream="side")
    return builder.build()


@pytest.mark.parametrize("said", [7, np.int64(7), None])
def test_what_it_emitted_of_any_kind_comes_again(said, monkeypatch) -> None:
    monkeypatch.setattr(Emits, "said", said)
    pump = Pump(emitting())
    send(pump, ("1", "a"))
    first = sorted(map(repr, Receive.received))
    assert any(repr(b"\xff") in one for one in first)
    Receive.received.clear()
    monkeypatch.setattr(Emits, "said", 99)
    send(pump, ("1", "a"))
    assert sorted(map(repr, Receive.received)) == first
    assert counts(pump) == {"executed": 1}


def test_what_it_emitted_to_a_task_that_is_gone_goes_to_another() -> None:
    pump = Pump(emitting(parallelism=3))
    send(pump, ("1", "a"))
    first = sorted(map(repr, Receive.received))
    Receive.received.clear()
    smaller = Pump(emitting(), state=MemoryStateStore(2, pump.state))
    send(smaller, ("1", "a"))
    assert sorted(map(repr, Receive.received)) == first
    assert counts(smaller) == {"executed": 1}


class Audits(StatefulBolt):
    """Emits on a stream without receivers, before and between emissions on a stream with one."""

    output_streams = {"default": "n long", "audit": "n long"}  # noqa: RUF012
    once = True

    def execute(self, tup, collector):
        for n in range(3):
            collector.emit([n], stream="audit")
            collector.emit([n])


def test_what_no_bolt_receives_changes_no_key_of_what_comes_again() -> None:
    builder = TopologyBuilder("audits")
    builder.set_spout("lines", Source("line string"))
    builder.set_bolt("count", Audits()).shuffle_grouping("lines")
    builder.set_bolt("end", Receive()).shuffle_grouping("count")
    pump = Pump(builder.build())
    send(pump, ("1", "a"))
    first = sorted(Receive.received)
    Receive.received.clear()
    send(pump, ("1", "a"))
    assert sorted(Receive.received) == first
    assert len(first) == 3


def test_a_tuple_whose_emission_does_not_fit_was_not_applied(monkeypatch) -> None:
    monkeypatch.setattr(Emits, "said", "no number")
    pump = Pump(emitting())
    send(pump, ("1", "a"))
    assert counts(pump) == {}
    assert "field 'n' is a long" in next(iter(pump.failed.values()))
    monkeypatch.setattr(Emits, "said", 7)
    send(pump, ("1", "a"))
    assert counts(pump) == {"executed": 1}
    assert len(pump.acked) == 1


class Flushes(Count):
    raises = False

    def flush(self, collector):
        if Flushes.raises:
            raise RuntimeError("flush")


def test_a_flush_that_raises_leaves_nothing_applied(monkeypatch) -> None:
    monkeypatch.setattr(Flushes, "raises", True)
    pump = Pump(topology(Flushes()))
    send(pump, ("1", "a"))
    assert counts(pump) == {}
    monkeypatch.setattr(Flushes, "raises", False)
    send(pump, ("1", "a"))
    send(pump, ("1", "a"))
    assert counts(pump) == {"a": 1}


def test_what_is_forgotten_counts_again_and_time_runs_while_the_topology_does() -> None:
    now = 1_000_000.0
    state = MemoryStateStore(clock=lambda: now)
    pump = Pump(topology(Count()), state=state)

    def send_and_age(*messages):
        send(pump, *messages)
        state.age("count", 60)

    send_and_age(("1", "a"))
    now += 86_400 * 365  # the clock jumps, or the topology stood still for a year
    send_and_age(("other", "x"))
    send_and_age(("1", "a"))
    assert counts(pump)["a"] == 1
    now -= 86_400 * 700
    for n in range(5):
        now += 30
        send_and_age((f"more-{n}", "x"))
        send_and_age(("1", "a"))
        assert counts(pump)["a"] == 1
    for n in range(3):
        now += 30
        send_and_age((f"late-{n}", "x"))
    send_and_age(("1", "a"))
    assert counts(pump)["a"] == 2


class Together(Count):
    """Two tasks get their first tuple at the same time."""

    both: ClassVar[threading.Barrier]
    entered = False

    def execute(self, tup, collector):
        if not self.entered:
            self.entered = True
            self.both.wait(30)
        super().execute(tup, collector)


def test_of_two_tasks_at_one_tuple_the_second_begins_its_step_again(caplog) -> None:
    caplog.set_level("INFO")
    builder = TopologyBuilder("together")
    builder.set_spout("words", Source("word string"))
    builder.set_bolt("count", Together(), 2).shuffle_grouping("words")
    pump = Pump(builder.build())
    Together.both = threading.Barrier(2)
    pump.feed(["a"], ["a"], identities=["1", "1"])
    pump.send()
    bolt_tasks = [BoltTask(pump.around, task) for task in pump.tasks]
    threads = [threading.Thread(target=bolt_task.run) for bolt_task in bolt_tasks]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: pump.read() or len(pump.acked) == 2)
    finally:
        for bolt_task, thread in zip(bolt_tasks, threads, strict=True):
            bolt_task.stop()
            thread.join()
    assert counts(pump) == {"a": 1}
    [said] = [record for record in caplog.records if "begins again" in record.message]
    assert (said.levelname, said.event) == ("INFO", "step_again")


@settings(max_examples=60)
@given(st.integers(0, 1 << 32))
def test_whatever_dies_and_comes_again_each_message_counts_once(seed) -> None:
    """Faults are duplicates, redeliveries, processes that die in a commit, and takeovers."""
    random = Random(seed)
    lines = {f"{n}": " ".join(random.choices("abcd", k=random.randint(0, 4))) for n in range(12)}
    pump = Pump(topology(parallelism=random.choice([1, 3])))
    Receive.received.clear()
    Receive.fail_first = random.randint(0, 3)
    for _ in range(random.randint(1, 8)):
        some = random.choices(list(lines), k=random.randint(1, 6))
        pump.feed(*([lines[one]] for one in some), identities=some)
        with killed_after(random.randint(0, 12)):
            pump.run()
        pump.take_over()
    pump.run()
    pump.feed(*([line] for line in lines.values()), identities=list(lines))
    pump.run()
    assert counts(pump) == Counter(" ".join(lines.values()).split())
    # Each execution of a tuple has emitted the same values.
    below = {key: values for *values, key in Receive.received}
    assert all(below[key] == values for *values, key in Receive.received)
    assert sorted(n for word, n in below.values() if word == "a") == list(
        range(1, counts(pump).get("a", 0) + 1)
    )

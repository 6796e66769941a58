"""Whatever a bolt's code does, only tuples fail, with one readable line; the Spark task goes on."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.pump import Pump, Source
from tests.support.reasons import unplaced
from tiercel import (
    AggregatingBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    TopologyError,
    TupleError,
)
from tiercel.testing import FeederSpout, LocalCluster


class UnreadableError(Exception):
    def __str__(self) -> str:
        return self.detail


class PanicException(BaseException):
    pass


def panic():
    raise PanicException("called `Option::unwrap()` on a `None` value")


def group():
    raise BaseExceptionGroup("some", [PanicException()])


def leave():
    sys.exit("usage: parse")


def cancel():
    raise asyncio.CancelledError


def close():
    raise GeneratorExit


def unreadable():
    raise UnreadableError


def many_lines():
    raise ValueError("\r\nfirst\rsecond\u2028third")


RAISING = [
    (leave, "SystemExit: usage: parse"),
    (cancel, "CancelledError"),
    (close, "GeneratorExit"),
    (panic, "PanicException: called `Option::unwrap()` on a `None` value"),
    (group, "BaseExceptionGroup: some (1 sub-exception): PanicException"),
    (unreadable, "UnreadableError: its message cannot be read"),
    (many_lines, "ValueError: first"),
]
raising = pytest.mark.parametrize(
    ("raises", "reason"), RAISING, ids=[raises.__name__ for raises, _ in RAISING]
)


def topology(
    bolt: Bolt | BasicBolt, *, then: BasicBolt | None = None, fields: str = "word string"
) -> Topology:
    builder = TopologyBuilder("code")
    builder.set_spout("spout", Source(fields))
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    if then:
        builder.set_bolt("then", then, parallelism=2).shuffle_grouping("bolt")
    return builder.build()


class Calling(BasicBolt):
    """Calls a function for the word "bad", or in the named call."""

    def __init__(self, call, step: str = "execute") -> None:
        self.call = call
        self.step = step

    def prepare(self, config, context):
        if self.step == "prepare":
            self.call()

    def execute(self, tup, collector):
        if self.step == "execute" and tup[0] == "bad":
            self.call()

    def flush(self, collector):
        if self.step in ("flush", "cleanup"):
            self.call()

    def cleanup(self):
        if self.step == "cleanup":
            self.call()


class CallingByHand(Bolt):
    def __init__(self, call) -> None:
        self.call = call

    def execute(self, tup, collector):
        if tup[0] == "bad":
            self.call()
        collector.ack(tup)


@raising
@pytest.mark.parametrize("kind", [Calling, CallingByHand])
def test_what_execute_raises_fails_its_tuple_and_no_other(
    kind: Any, raises: Any, reason: str
) -> None:
    pump = Pump(topology(kind(raises)))
    good, bad, fine = pump.feed(["good"], ["bad"], ["fine"])
    pump.run()
    assert pump.failed == {bad: f"bolt: {reason}"}
    assert sorted(pump.acked) == sorted([good, fine])
    assert [unplaced(error.message) for error in pump.metrics.errors()] == [reason]


@raising
@pytest.mark.parametrize("step", ["prepare", "flush"])
def test_what_prepare_and_flush_raise_fails_the_tuples_of_the_step(
    step: str, raises: Any, reason: str
) -> None:
    pump = Pump(topology(Calling(raises, step)))
    roots = pump.feed(["a"], ["b"])
    pump.run()
    assert pump.failed == dict.fromkeys(roots, f"bolt: {step}: {reason}")


@raising
def test_a_cleanup_that_raises_does_no_harm(raises: Any, reason: str) -> None:
    pump = Pump(topology(Calling(raises, "cleanup")))
    roots = pump.feed(["a"])
    pump.run()
    assert pump.failed == dict.fromkeys(roots, f"bolt: flush: {reason}")


class EmitsLock(BasicBolt):
    output_fields = "content binary"

    def execute(self, tup, collector):
        collector.emit([threading.Lock() if tup[0] == "bad" else b""])


def test_a_value_that_cannot_be_copied_fails_its_tuple_with_the_name_of_the_field() -> None:
    pump = Pump(topology(EmitsLock(), then=Calling(lambda: None, step="never")))
    good, bad = pump.feed(["good"], ["bad"])
    pump.run()
    assert pump.acked == [good]
    assert "field 'content' is a binary, the value is the lock" in pump.failed[bad]


class Lazy:
    def __repr__(self) -> str:
        raise RuntimeError("not bound to a session")


class EmitsLazily(BasicBolt):
    output_fields = "number long"

    def execute(self, tup, collector):
        collector.emit([Lazy() if tup[0] == "bad" else len(tup[0])])


def test_a_value_that_raises_when_it_is_encoded_fails_its_tuple_and_no_other() -> None:
    pump = Pump(topology(EmitsLazily(), then=Calling(lambda: None, step="never")))
    good, bad = pump.feed(["good"], ["bad"])
    pump.run()
    assert pump.acked == [good]
    assert list(pump.failed) == [bad]
    assert "a Lazy that cannot be read: it raises a RuntimeError" in pump.failed[bad]


def test_a_key_that_is_pressed_ends_the_task() -> None:
    def press():
        raise KeyboardInterrupt

    pump = Pump(topology(Calling(press)))
    pump.feed(["bad"])
    with pytest.raises(KeyboardInterrupt):
        pump.run()


def test_elsewhere_than_in_the_main_thread_no_key_is_pressed_and_the_tuple_fails() -> None:
    """Else the task would begin again and again with the same tuple."""

    def interrupt():
        raise KeyboardInterrupt("by the code of the bolt")

    pump = Pump(topology(Calling(interrupt)))
    [root] = pump.feed(["bad"])
    thread = threading.Thread(target=pump.run)
    thread.start()
    thread.join(20)
    assert pump.failed == {root: "bolt: KeyboardInterrupt: by the code of the bolt"}


class Misspelt(BasicBolt):
    def excute(self, tup, collector):
        pass


class MisspeltSum(AggregatingBolt):
    tumbling = 2

    def create(self):
        return 0

    def ad(self, accumulator, tup):
        return accumulator

    def result(self, accumulator, window, collector):
        pass


class Short(BasicBolt):
    def execute(self, tup):
        pass


class Long(BatchBolt):
    def execute_batch(self, tuples, collector, more):
        pass


class ShortPrepare(BasicBolt):
    def prepare(self, config):
        pass

    def execute(self, tup, collector):
        pass


class Static(BasicBolt):
    @staticmethod
    def execute(tup, collector, *, more=1):
        pass


@pytest.mark.parametrize(
    ("bolt", "said"),
    [
        (Misspelt(), "'bolt' has no method execute; did you mean 'excute'"),
        (MisspeltSum(), "'bolt' has no method add; did you mean 'ad'"),
        (Short(), r"execute is called with \(tup, collector\), and takes \(tup\)"),
        (Long(), r"execute_batch is called with \(tuples, collector\), and takes \(tuples, col"),
        (ShortPrepare(), r"prepare is called with \(config, context\), and takes \(config\)"),
    ],
)
def test_a_method_that_is_misspelt_or_takes_other_arguments_is_refused(bolt, said) -> None:
    with pytest.raises(TopologyError, match=said):
        topology(bolt)


def test_a_method_that_can_be_called_is_accepted_however_it_is_written() -> None:
    pump = Pump(topology(Static()))
    roots = pump.feed(["a"])
    pump.run()
    assert pump.acked == roots


class Given(BasicBolt):
    """Has an attribute from ``__init__``."""

    output_fields = "word string"

    def __init__(self, given) -> None:
        self.given = given

    def execute(self, tup, collector):
        collector.emit([self.given.dumps(tup[0])])


class GivenAsync(AsyncBolt):
    def __init__(self, given) -> None:
        self.given = given

    async def execute(self, tup, collector):
        assert self.given


@pytest.mark.parametrize("kind", [Given, GivenAsync])
def test_a_module_may_be_an_attribute_and_a_lock_is_refused_by_name(kind: Any) -> None:
    for given, said in ((json, ""), (threading.Lock(), "its attribute 'given' cannot be copied")):
        spout = FeederSpout(fields="word string")
        builder = TopologyBuilder("code")
        builder.set_spout("spout", spout)
        builder.set_bolt("bolt", kind(given)).shuffle_grouping("spout")
        with LocalCluster(builder.build()) as cluster:
            spout.feed(["a"], msg_id="m")
            cluster.run_until_idle()
            assert cluster.acked("spout") == ([] if said else ["m"])
            assert said in str(cluster.fail_reasons("spout"))


class Failing(Bolt):
    def __init__(self, reason: Any) -> None:
        self.reason = reason

    def execute(self, tup, collector):
        collector.fail(tup, self.reason)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (ValueError("too hot\nreally"), "ValueError: too hot"),
        (UnreadableError(), "UnreadableError: its message cannot be read"),
        ("too hot\nreally", "too hot"),
        ("x" * 10_000, "x" * 500),
        ("", "failed by the bolt"),
        (None, "failed by the bolt"),
        ("\n", "failed by the bolt"),
        (404, "404"),
        (TimeoutError, "TimeoutError"),
    ],
    ids=[
        "an error",
        "an unreadable error",
        "lines",
        "a long text",
        "nothing",
        "None",
        "an empty line",
        "a number",
        "a class",
    ],
)
def test_a_bolt_may_give_any_reason_and_one_line_of_it_is_kept(given: Any, reason: str) -> None:
    pump = Pump(topology(Failing(given)))
    roots = pump.feed(["a"])
    pump.run()
    assert pump.failed == dict.fromkeys(roots, f"bolt: {reason}")


class Reporting(BasicBolt):
    def execute(self, tup, collector):
        for error in (UnreadableError(), "two\nlines", KeyError("k"), 7):
            collector.report_error(error)


def test_any_error_may_be_reported_and_one_line_of_it_is_kept() -> None:
    pump = Pump(topology(Reporting()))
    roots = pump.feed(["a"])
    pump.run()
    assert pump.acked == roots
    messages = {error.message for error in pump.metrics.errors()}
    assert messages == {"UnreadableError: its message cannot be read", "two", "KeyError: 'k'", "7"}


class Holding(Bolt):
    """Acks every other tuple; its flush fails."""

    def execute(self, tup, collector):
        if tup[0] == "ack":
            collector.ack(tup)

    def flush(self, collector):
        raise ConnectionError("gone")


def test_what_a_copy_held_fails_with_it_and_does_not_wait_for_the_timeout() -> None:
    pump = Pump(topology(Holding()))
    roots = pump.feed(["ack"], ["hold"])
    pump.run()
    assert pump.failed == dict.fromkeys(roots, "bolt: flush: ConnectionError: gone")
    assert pump.ledger.pending() == 0


class OneWay:
    """Refuses the word "bad"."""

    def prepare(self, context, stream, target_tasks):
        self.target = target_tasks[0]

    def choose_tasks(self, task_id, values):
        return [self.target if values[0] != "bad" else 99]


class Falling(BasicBolt):
    """Emits the error if the tuple itself cannot be emitted."""

    output_streams = {"default": "word string", "errors": "word string"}  # noqa: RUF012 - as users write it

    def execute(self, tup, collector):
        try:
            collector.emit([tup[0]])
        except TupleError:
            collector.emit([tup[0]], stream="errors")


class Seeing(BasicBolt):
    seen: ClassVar[list] = []

    def execute(self, tup, collector):
        self.seen.append((tup.source_stream, tup[0]))


def test_an_emission_that_one_grouping_refuses_is_sent_to_nobody() -> None:
    Seeing.seen.clear()
    builder = TopologyBuilder("refusing")
    builder.set_spout("spout", Source())
    builder.set_bolt("bolt", Falling()).shuffle_grouping("spout")
    for name in ("first", "second"):
        declarer = builder.set_bolt(name, Seeing())
        if name == "first":
            declarer.shuffle_grouping("bolt").shuffle_grouping("bolt", "errors")
        else:
            declarer.custom_grouping("bolt", OneWay())
    pump = Pump(builder.build())
    roots = pump.feed(["good"], ["bad"])
    pump.run()
    assert sorted(pump.acked) == sorted(roots)
    assert sorted(Seeing.seen) == [("default", "good"), ("default", "good"), ("errors", "bad")]


class Reusing(BasicBolt):
    """Emits one list, array, map and buffer over and over, each time with other content."""

    output_fields = (
        "numbers array<long>, deep array<array<long>>, block array<double>, raw binary, texts "
        "map<string,string>"
    )

    def prepare(self, config, context):
        self.numbers: list[int] = []
        self.deep: list[list[int]] = [[]]
        self.block = np.zeros(2)
        self.raw = bytearray(1)
        self.texts: dict[str, str] = {}

    def execute(self, tup, collector):
        number = tup["n"]
        self.numbers.append(number)
        self.deep[0].append(number)
        self.block += 1
        self.raw[0] = number
        self.texts["n"] = str(number)
        collector.emit([self.numbers, self.deep, self.block, self.raw, self.texts])


class ReusingByHand(Bolt):
    output_fields = Reusing.output_fields
    prepare = Reusing.prepare

    def execute(self, tup, collector):
        Reusing.execute(self, tup, collector)
        collector.ack(tup)


class Keeping(BasicBolt):
    seen: ClassVar[list] = []

    def execute(self, tup, collector):
        self.seen.append(list(tup.values))


@pytest.mark.parametrize("kind", [Reusing, ReusingByHand])
def test_what_is_emitted_is_what_it_was_then_whatever_the_bolt_does_to_it_later(kind: Any) -> None:
    Keeping.seen.clear()
    pump = Pump(topology(kind(), then=Keeping(), fields="n long"))
    pump.feed([1], [2], [3])
    pump.run()
    assert sorted(Keeping.seen) == [
        [[1], [[1]], [1.0, 1.0], b"\x01", {"n": "1"}],
        [[1, 2], [[1, 2]], [2.0, 2.0], b"\x02", {"n": "2"}],
        [[1, 2, 3], [[1, 2, 3]], [3.0, 3.0], b"\x03", {"n": "3"}],
    ]


class ReusingDirectly(BasicBolt):
    output_streams = {"named": "numbers array<long>"}  # noqa: RUF012 - as users write it
    direct_streams = frozenset({"named"})

    def prepare(self, config, context):
        self.numbers: list[int] = []

    def execute(self, tup, collector):
        self.numbers.append(tup["n"])
        self.send(tup, collector)

    def send(self, tup, collector):
        collector.emit_direct(3, [self.numbers], stream="named")


class ReusingDirectlyByHand(Bolt):
    output_streams = ReusingDirectly.output_streams
    direct_streams = ReusingDirectly.direct_streams
    prepare = ReusingDirectly.prepare
    execute = ReusingDirectly.execute

    def send(self, tup, collector):
        collector.emit_direct(3, [self.numbers], tup, stream="named")


@pytest.mark.parametrize("kind", [ReusingDirectly, ReusingDirectlyByHand])
def test_what_is_emitted_directly_is_what_it_was_then_too(kind: Any) -> None:
    Keeping.seen.clear()
    builder = TopologyBuilder("direct")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("bolt", kind()).shuffle_grouping("spout")
    builder.set_bolt("then", Keeping()).direct_grouping("bolt", stream="named")
    pump = Pump(builder.build())
    pump.feed([1], [2])
    pump.run()
    assert Keeping.seen == [[[1]], [[1, 2]]]


def test_what_a_spout_emits_is_what_it_was_then_too() -> None:
    pump = Pump(topology(Keeping(), fields="numbers array<long>, raw binary"))
    numbers = [1]
    raw = bytearray(b"a")
    pump.feed([numbers, raw])
    numbers.append(2)
    raw[0] = 0
    pump.send()
    assert pump.rows("bolt") == [([1], b"a")]


def logged(method):
    """A decorator that hides which kind of function it wraps."""

    @functools.wraps(method)
    def call(*arguments):
        return method(*arguments)

    return call


class DecoratedCoroutine(BasicBolt):
    @logged
    async def execute(self, tup, collector):
        pass


class ForgottenAwait(Bolt):
    async def store(self, tup):
        pass

    def execute(self, tup, collector):
        collector.ack(tup)
        return self.store(tup)


class DecoratedGenerator(BasicBolt):
    @logged
    def execute(self, tup, collector):
        yield tup


class DecoratedBatches(BatchBolt):
    @logged
    async def execute_batch(self, tuples, collector):
        pass


class DecoratedFlush(BasicBolt):
    def execute(self, tup, collector):
        pass

    @logged
    async def flush(self, collector):
        pass


class DecoratedPrepare(BasicBolt):
    @logged
    async def prepare(self, config, context):
        pass

    def execute(self, tup, collector):
        pass


class StatefulForgottenAwait(StatefulBolt):
    async def store(self, tup):
        pass

    def execute(self, tup, collector):
        self.state.increment("stored")
        return self.store(tup)


@pytest.mark.parametrize(
    ("bolt", "said"),
    [
        (DecoratedCoroutine(), "execute returned a coroutine, which nothing awaits"),
        (ForgottenAwait(), "execute returned a coroutine, which nothing awaits"),
        (StatefulForgottenAwait(), "execute returned a coroutine, which nothing awaits"),
        (DecoratedGenerator(), "execute returned a generator, which nothing runs"),
        (DecoratedBatches(), "execute_batch returned a coroutine, which nothing awaits"),
        (DecoratedFlush(), "flush returned a coroutine, which nothing awaits"),
        (DecoratedPrepare(), "prepare returned a coroutine, which nothing awaits"),
    ],
)
def test_a_call_that_returns_what_nothing_would_run_fails_its_tuple(bolt: Any, said: str) -> None:
    spout = FeederSpout(fields="word string")
    builder = TopologyBuilder("code")
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    with LocalCluster(builder.build()) as cluster:
        spout.feed(["a"], msg_id="m")
        cluster.run_until_idle()
        assert said in str(cluster.fail_reasons("spout"))
        assert not cluster.acked("spout")


def test_a_decorated_coroutine_of_an_async_bolt_is_awaited() -> None:
    done = []

    class Decorated(AsyncBolt):
        @logged
        async def execute(self, tup, collector):
            await asyncio.sleep(0)
            done.append(tup[0])

    spout = FeederSpout(fields="word string")
    builder = TopologyBuilder("code")
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", Decorated()).shuffle_grouping("spout")
    with LocalCluster(builder.build()) as cluster:
        spout.feed(["a"], msg_id="m")
        cluster.run_until_idle()
        assert cluster.acked("spout") == ["m"]
    assert done == ["a"]


def test_a_returned_value_is_logged_once_but_not_the_result_of_emit(caplog) -> None:
    class Returning(BasicBolt):
        output_fields = "word string"

        def execute(self, tup, collector):
            return tup[0]

    class Ending(BasicBolt):
        def execute(self, tup, collector):
            return [0]

    pump = Pump(topology(Returning(), then=Ending()))
    roots = pump.feed(["a"], ["b"])
    pump.run()
    assert sorted(pump.acked) == sorted(roots)
    said = [one.getMessage() for one in caplog.records if "returned" in one.getMessage()]
    assert len(said) == 1
    assert "Returning.execute returned a value of type str, which is ignored" in said[0]


class Yielding(BasicBolt):
    def execute(self, tup, collector):
        yield tup


class Waiting(Bolt):
    async def execute(self, tup, collector):
        collector.ack(tup)


class WaitingFlush(BasicBolt):
    def execute(self, tup, collector):
        pass

    async def flush(self, collector):
        pass


@pytest.mark.parametrize(
    ("bolt", "method"), [(Yielding(), "execute"), (Waiting(), "execute"), (WaitingFlush(), "flush")]
)
def test_a_bolt_whose_code_would_never_run_is_refused(bolt: Any, method: str) -> None:
    with pytest.raises(
        TopologyError, match=rf"'bolt': {method} .* would never run: write a plain method"
    ):
        topology(bolt)

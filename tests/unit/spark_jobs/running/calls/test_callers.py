"""Coroutines on the process's event loop, and threads: how calls begin, end and are abandoned."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, TopologyBuilder
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.kinds.calls import coroutines as loop_module
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.calls.coroutines import Coroutines, ProcessLoop
from tiercel.spark_jobs.kinds.calls.threads import ThreadCalls


class Nothing(BasicBolt):
    def execute(self, tup, collector):
        pass


def outputs() -> Outputs:
    builder = TopologyBuilder("callers")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("bolt", Nothing()).shuffle_grouping("spout")
    return Outputs(builder.build(), 2)


@pytest.fixture
def loop() -> ProcessLoop:
    return ProcessLoop()


@pytest.fixture
def coroutines(loop: ProcessLoop) -> Iterator[Coroutines]:
    with closing(Coroutines(loop, "bolt", outputs(), timedelta(seconds=30))) as caller:
        yield caller
        caller.cancel()


def call() -> Call:
    return Call(tup=Tuple([1], None, 0))  # type: ignore[arg-type]


def ended_of(caller: Any, execute: Callable[..., Any], *calls: Call) -> list[Call]:
    """Run calls until they end."""
    ended: list[Call] = []
    caller.start(execute, calls, ended.append)
    wait_until(lambda: len(ended) == len(calls))
    return ended


async def leaves(tup: Any, collector: Any) -> None:
    raise SystemExit(3)


async def fine(tup: Any, collector: Any) -> None:
    await asyncio.sleep(0)


def test_a_call_that_exits_fails_its_tuple_and_the_loop_goes_on(coroutines: Coroutines) -> None:
    [ended] = ended_of(coroutines, leaves, call())
    assert isinstance(ended.error, SystemExit)
    [ended] = ended_of(coroutines, fine, call())
    assert (ended.error, ended.ended, ended.took_ns > 0) == (None, True, True)


def test_a_task_of_a_bolts_own_that_exits_or_raises_is_told_and_the_loop_goes_on(
    coroutines: Coroutines, caplog: pytest.LogCaptureFixture
) -> None:
    async def strays(tup: Any, collector: Any) -> None:
        asyncio.get_running_loop().create_task(leaves(tup, collector))
        asyncio.get_running_loop().call_soon(int, "no number")

    ended_of(coroutines, strays, call())
    [ended] = ended_of(coroutines, fine, call())
    assert ended.error is None
    wait_until(lambda: "raised SystemExit: 3; the loop goes on" in caplog.text)
    # From Python 3.13 on, without the arguments.
    said = re.sub(r"int\('no number'\)", "int()", caplog.text)
    assert "on the loop of the bolts: Exception in callback int(): Value" in said


def test_other_methods_run_on_the_loop_plain_or_async_and_raise_here(
    coroutines: Coroutines,
) -> None:
    threads = []

    def plain(number: int) -> None:
        asyncio.get_running_loop()
        threads.append((number, threading.current_thread().name))

    async def exits() -> None:
        raise SystemExit(4)

    coroutines.do(plain, 7)
    assert threads == [(7, "loop of the bolts")]
    with pytest.raises(SystemExit):
        coroutines.do(exits)
    coroutines.do(plain, 8)


def test_the_loop_ends_with_its_last_user_and_begins_again_with_the_next(
    loop: ProcessLoop,
) -> None:
    first = Coroutines(loop, "first", outputs(), None)
    second = Coroutines(loop, "second", outputs(), None)
    first.close()
    first.close()
    ended_of(second, fine, call())
    second.close()
    wait_until(lambda: "loop of the bolts" not in {one.name for one in threading.enumerate()})
    with pytest.raises(RuntimeError, match="enter it first"):
        second.start(fine, [call()], print)
    third = Coroutines(loop, "third", outputs(), None)
    ended_of(third, fine, call())
    third.close()


def test_calls_that_go_on_after_their_cancellation_are_told_and_left(
    coroutines: Coroutines,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tiercel.spark_jobs.kinds.calls.coroutines._GRACE_S", 0.5)
    free = threading.Event()

    async def stubborn(tup: Any, collector: Any) -> None:
        while not free.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    coroutines.start(stubborn, [call()], print)
    wait_until(lambda: coroutines._tasks)
    assert not coroutines.cancel()
    assert "bolt: 1 calls go on although they were cancelled" in caplog.text
    free.set()
    wait_until(lambda: not coroutines._tasks)


def test_a_blocked_loop_is_given_up_and_known(
    coroutines: Coroutines,
    loop: ProcessLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tiercel.spark_jobs.kinds.calls.coroutines._GRACE_S", 0.05)
    free = threading.Event()

    async def blocks(tup: Any, collector: Any) -> None:
        free.wait(30)

    blocking = call()
    ended: list[Call] = []
    coroutines.start(blocks, [blocking], ended.append)
    wait_until(lambda: coroutines.hanging() is blocking)
    assert loop.blocking() is not None
    assert not coroutines.cancel()
    assert "bolt: the loop is blocked, and its calls go on" in caplog.text
    free.set()
    wait_until(lambda: ended == [blocking])
    wait_until(lambda: coroutines.hanging() is None)


def test_prepare_that_blocks_the_loop_is_named_too(
    coroutines: Coroutines, caplog: pytest.LogCaptureFixture
) -> None:
    said = "bolt blocks the event loop of its process"

    def block() -> None:
        until = time.monotonic() + 30
        while said not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)

    coroutines.do(block)
    assert said in caplog.text
    assert __file__ in caplog.text


def test_threads_are_as_many_as_calls_at_once_and_are_used_again() -> None:
    caller = ThreadCalls("bolt", outputs(), 8)
    names = set()

    def execute(tup: Any, collector: Any) -> None:
        names.add(threading.current_thread().name)
        time.sleep(0.01)

    for _ in range(5):
        ended_of(caller, execute, call(), call())
    assert names == {"bolt: call 0", "bolt: call 1"}
    assert caller.cancel()
    wait_until(lambda: not names & {one.name for one in threading.enumerate()})


def test_a_thread_that_goes_on_is_told_and_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tiercel.spark_jobs.kinds.calls.threads._GRACE_S", 0.05)
    caller = ThreadCalls("bolt", outputs(), 8)
    free = threading.Event()
    begun = threading.Event()

    def execute(tup: Any, collector: Any) -> None:
        begun.set()
        free.wait(30)

    ended: list[Call] = []
    hanging = call()
    caller.start(execute, [hanging], ended.append)
    assert begun.wait(10)
    assert caller.hanging() is hanging
    assert not caller.cancel()
    assert "bolt: 1 calls go on in their threads" in caplog.text
    free.set()
    wait_until(lambda: ended == [hanging])


def test_calls_in_threads_are_under_way_at_once(coroutines: Coroutines) -> None:
    together = threading.Barrier(100)

    async def blocks(tup: Any, collector: Any) -> None:
        await asyncio.to_thread(together.wait, 30)

    ended = ended_of(coroutines, blocks, *(call() for _ in range(100)))
    assert [each.error for each in ended] == [None] * 100


class Interrupted(SimpleQueue[Any]):
    """Switches threads once the first call has left the queue."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.go_on = threading.Event()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        work = super().get(block, timeout)
        if not self.left.is_set():
            self.left.set()
            self.go_on.wait(10)
        return work


def test_a_call_has_a_thread_while_another_one_is_about_to_begin() -> None:
    threads = ThreadCalls("bolt", outputs(), most=2)
    threads._work = work = Interrupted()
    free = threading.Event()
    began: list[Tuple] = []
    ended: list[Call] = []

    def execute(tup: Tuple, collector: object) -> None:
        began.append(tup)
        free.wait(10)

    try:
        threads.start(execute, [call()], ended.append)
        work.left.wait(10)
        threads.start(execute, [call()], ended.append)
        work.go_on.set()
        wait_until(lambda: len(began) == 2)
        assert not ended
    finally:
        free.set()
        threads.cancel()


def test_a_loop_that_was_blocked_ends_though_another_one_has_begun(
    loop: ProcessLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "_LOOP_GRACE_S", 0.1)
    free = threading.Event()

    async def for_ever() -> None:
        await asyncio.Event().wait()

    kept: list[asyncio.Task[None]] = []
    loop.enter()
    thread = loop._thread
    loop.soon(lambda: kept.append(asyncio.create_task(for_ever())))
    loop.soon(lambda: free.wait(10))
    # As an attempt does when it begins again in its process.
    loop.leave()
    loop.enter()
    free.set()
    try:
        assert thread is not None
        wait_until(lambda: not thread.is_alive())
        assert [task.cancelled() for task in kept] == [True]
    finally:
        loop.leave()

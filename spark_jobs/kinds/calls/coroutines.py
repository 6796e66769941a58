"""Runs the calls of an ``AsyncBolt`` on the event loop of the process."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.calls.caller import Ended, Execute, UnderWay
from tiercel.spark_jobs.kinds.calls.loop import COMPONENT, Loop
from tiercel.spark_jobs.kinds.calls.recorders import AsyncRecorder, CallRecorder

log = logging.getLogger(__name__)

# Time for calls that were cancelled at the end.
_GRACE_S = 2.0
# Time after which a call that was cancelled and goes on is taken for one that swallowed it.
_SWALLOWED_S = 1.0


class Coroutines:
    """``Caller`` of one task of an ``AsyncBolt``. What has an underscore runs on the loop."""

    def __init__(
        self, loop: Loop, component: str, outputs: Outputs, limit: timedelta | None
    ) -> None:
        """A call is cancelled after ``limit``. ``outputs`` are for checks alone."""
        self._loop = loop
        self._component = component
        self._outputs = outputs
        self._limit_s = limit.total_seconds() if limit else None
        self._context = contextvars.copy_context()
        self._context.run(COMPONENT.set, component)
        # In the order in which they began.
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        # Cancelled, and still going on.
        self._overdue: dict[Call, asyncio.TimerHandle] = {}
        self._open = True
        self._entered = True
        loop.enter()

    def time(self) -> float:
        return self._loop.time()

    def recorder(self, call: Call | None) -> CallRecorder:
        return AsyncRecorder(self._component, self._outputs, call)

    def start(self, execute: Execute, calls: Sequence[Call], ended: Ended) -> None:
        self._loop.soon(lambda: self._begin(execute, calls, ended))

    def pause(self, calls: UnderWay, seconds: float) -> None:
        self._loop.pause(calls, seconds)

    def do(self, method: Callable[..., Awaitable[None] | None], *arguments: object) -> None:
        error = self._context.copy().run(self._loop.run, lambda: self._awaited(method, arguments))
        if error is not None:
            raise error

    def hanging(self) -> Call | None:
        blocking = self._loop.blocking()
        if blocking is not None:
            for call, task in self._tasks.copy().items():
                if task is blocking:
                    return call
        return next(iter(self._overdue.copy()), None)

    def cancel(self) -> bool:
        if not self._open:
            return True
        self._open = False
        going_on: object = "the loop is blocked, and its"
        with suppress(TimeoutError):
            going_on = self._loop.run(self._cancelled, timeout_s=2 * _GRACE_S)
        if going_on:
            log.warning(
                "%s: %s calls go on although they were cancelled; they end with the process",
                self._component, going_on, extra={"event": "calls_not_ended"},
            )  # fmt: skip
        return not going_on

    def close(self) -> None:
        if self._entered:
            self._entered = False
            self._loop.leave()

    # -- on the loop -----------------------------------------------------------------------------

    def _begin(self, execute: Execute, calls: Sequence[Call], ended: Ended) -> None:
        loop = asyncio.get_running_loop()
        for call in calls if self._open else ():
            self._tasks[call] = loop.create_task(
                self._executed(execute, call, ended), context=self._context.copy()
            )

    async def _executed(self, execute: Execute, call: Call, ended: Ended) -> None:
        loop = asyncio.get_running_loop()
        timer = (
            None if self._limit_s is None else loop.call_later(self._limit_s, self._exceed, call)
        )
        began_ns = time.perf_counter_ns()
        try:
            made = execute(call.tup, self.recorder(call))
            if made is not None:
                await made
        except BaseException as error:  # noqa: BLE001 - the loop goes on, and the tuple fails
            call.error = error
        if call in self._overdue:
            self._overdue.pop(call).cancel()
            call.error = TimeoutError(f"took longer than {self._limit_s:g} s in execute")
        if timer is not None:
            timer.cancel()
        call.took_ns = time.perf_counter_ns() - began_ns
        call.ended = True
        del self._tasks[call]
        ended(call)

    def _exceed(self, call: Call) -> None:
        """Cancel a call that takes too long."""
        loop = asyncio.get_running_loop()
        self._overdue[call] = loop.call_later(_SWALLOWED_S, self._say_swallowed, call)
        self._tasks[call].cancel()

    def _say_swallowed(self, call: Call) -> None:
        log.warning(
            "%s: a call for %r goes on although it was cancelled after %g s; its process is "
            "replaced if it goes on for as long again: let CancelledError pass",
            self._component, call.tup, self._limit_s, extra={"event": "cancellation_swallowed"},
        )  # fmt: skip

    async def _awaited(
        self, method: Callable[..., Awaitable[None] | None], arguments: Sequence[object]
    ) -> BaseException | None:
        """Return what the method raises: a ``SystemExit`` of its own would end the loop."""
        try:
            made = method(*arguments)
            if inspect.isawaitable(made):
                await made
        except BaseException as error:  # noqa: BLE001 - raised again by the task's thread
            return error
        return None

    async def _cancelled(self) -> int:
        """Return how many calls go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, going_on = await asyncio.wait(tasks, timeout=_GRACE_S)
        return len(going_on)

"""Runs the calls of a ``BasicBolt`` in threads of its task, for blocking libraries."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from queue import SimpleQueue

from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.errors import check_result
from tiercel.spark_jobs.kinds.calls.call import (
    Call,
    CallRecorder,
    Ended,
    Execute,
    ThreadRecorder,
    UnderWay,
)

log = logging.getLogger(__name__)

_GRACE_S = 2.0
_Work = tuple[Execute, Call, Ended]


class ThreadCalls:
    """``Caller`` of one task.

    Threads cannot be cancelled, so the watchdog replaces the process when a call hangs.
    """

    def __init__(self, component: str, outputs: Outputs, most: int) -> None:
        """Use at most ``most`` threads. ``outputs`` only serve to check emissions."""
        self._component = component
        self._most = most
        self._outputs = outputs
        # A thread that takes None from the queue exits.
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        # Not a ThreadPoolExecutor: the interpreter joins its threads at exit, and one may hang.
        self._threads: list[threading.Thread] = []
        # Calls that have not begun, including calls a thread has just taken from the queue.
        self._given: dict[Call, None] = {}
        # Running calls, in the order in which they began.
        self._running: dict[Call, None] = {}
        self._open = True

    def time(self) -> float:
        return time.monotonic()

    def recorder(self, call: Call | None) -> CallRecorder:
        return ThreadRecorder(self._component, self._outputs, call)

    def start(self, execute: Execute, calls: Sequence[Call], ended: Ended) -> None:
        """Queue the calls, and start more threads if needed."""
        for call in calls:
            self._given[call] = None
            self._work.put((execute, call, ended))
        # Count given calls first, so that no call is missed; a call that begins now counts twice.
        needed = min(self._most, len(self._given) + len(self._running))
        while len(self._threads) < needed:
            name = f"{self._component}: call {len(self._threads)}"
            # Copy the task's context, so that log records of the bolt name the task.
            served = partial(contextvars.copy_context().run, self._serve)
            thread = threading.Thread(target=served, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def pause(self, calls: UnderWay, seconds: float) -> None:
        calls.changed.wait(seconds)

    def do(self, method: Callable[..., Awaitable[None] | None], *arguments: object) -> None:
        method(*arguments)

    def hanging(self) -> Call | None:
        return self.oldest()

    def oldest(self) -> Call | None:
        return next(iter(self._running.copy()), None)

    def cancel(self) -> bool:
        if not self._open:
            return not self._running
        self._open = False
        for _ in self._threads:
            self._work.put(None)
        until = time.monotonic() + _GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self._running:
            log.warning(
                "%s: %d calls go on in their threads; they end with the process",
                self._component, len(self._running), extra={"event": "calls_not_ended"},
            )  # fmt: skip
        return not self._running

    def close(self) -> None:
        """Do nothing: ``cancel`` has released everything."""

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            # The next attempt executes the calls that had not begun when this one ended.
            if self._open:
                self._execute(*work)

    def _execute(self, execute: Execute, call: Call, ended: Ended) -> None:
        self._running[call] = None
        del self._given[call]
        began_ns = time.perf_counter_ns()
        try:
            if (result := execute(call.tup, self.recorder(call))) is not None:
                check_result(result, execute)
        except BaseException as error:  # noqa: BLE001 - the thread lives on, and the tuple fails
            call.error = error
        call.took_ns = time.perf_counter_ns() - began_ns
        call.ended = True
        del self._running[call]
        ended(call)

"""The event loop of a process, and the calls of its ``AsyncBolt``s on that loop.

The loop has one thread. All ``AsyncBolt`` tasks of the process share it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.errors import check_result
from tiercel.spark_jobs.kinds.calls.call import (
    AsyncRecorder,
    Call,
    CallRecorder,
    Ended,
    Execute,
    UnderWay,
)
from tiercel.spark_jobs.reasons import raised, reason_of

# Time after which a loop that does not answer counts as blocked.
BLOCKED_S = 0.5
_LOOK_S = 0.5
# On a busy machine the loop's thread may just be starved. Only a loop that is still in the same
# asyncio task after this time is blocked.
_AGAIN_S = 0.1
_SAID_S = 60.0
_OURS = Path(__file__).parent
_ASYNCIO = Path(asyncio.__file__).parent
_THREADING = Path(threading.__file__)
# Component of a coroutine, inherited by asyncio tasks that a bolt creates.
COMPONENT: ContextVar[str | None] = ContextVar("component", default=None)
# Time that asyncio tasks created by bolts have to end when the loop closes.
_LOOP_GRACE_S = 1.0
# Maximum for ``asyncio.to_thread``. Threads start on demand, so ``concurrency`` is the real bound.
_THREADS = 1_000
T = TypeVar("T")


class Loop(Protocol):
    """An event loop shared by several bolt tasks.

    ``soon``, ``run`` and ``pause`` must not be called from the loop's own thread.
    """

    def time(self) -> float:
        """Return the time on the loop's clock, in seconds."""

    def enter(self) -> None:
        """Register a bolt task; the first task starts the loop."""

    def leave(self) -> None:
        """Unregister a bolt task; the last task stops the loop."""

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop without waiting for it."""

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Run a coroutine to its end. Raises TimeoutError after ``timeout_s``."""

    def pause(self, calls: UnderWay, seconds: float) -> None:
        """Let the loop run until a call ends or the task is woken, at most ``seconds``."""

    def blocking(self) -> asyncio.Task[Any] | None:
        """Return the asyncio task that blocks the loop, if there is one. Thread-safe."""


class ProcessLoop:
    """``Loop`` that runs in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._look: BlockedLook | None = None
        # One event per loop: a blocked loop may end after the next loop has started.
        self._over = threading.Event()

    def time(self) -> float:
        return time.monotonic()

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start()

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._end()

    def soon(self, function: Callable[[], object]) -> None:
        self._running().call_soon_threadsafe(function)

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(make(), self._running()).result(timeout_s)

    def pause(self, calls: UnderWay, seconds: float) -> None:
        calls.changed.wait(seconds)

    def blocking(self) -> asyncio.Task[Any] | None:
        look = self._look
        return look.blocking if look is not None else None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the event loop is not running: enter it first")
        return self._loop

    def _start(self) -> None:
        self._over = threading.Event()
        loop = asyncio.new_event_loop()
        # Python's default pool has a few threads per core, and calls would queue for it unnoticed.
        loop.set_default_executor(ThreadPoolExecutor(_THREADS, "a thread of the bolts"))
        owners: WeakKeyDictionary[asyncio.Task[Any], str | None] = WeakKeyDictionary()
        prepare_loop(loop, owners)
        thread = threading.Thread(
            target=self._serve, args=(loop, self._over), name="loop of the bolts", daemon=True
        )
        thread.start()
        self._loop = loop
        self._thread = thread
        self._look = BlockedLook(loop, thread, owners)
        self._look.start()

    def _end(self) -> None:
        loop, thread, look = self._loop, self._thread, self._look
        self._loop = self._thread = self._look = None
        if loop is None or thread is None or look is None:
            return
        look.end()
        self._over.set()
        loop.call_soon_threadsafe(loop.stop)
        # A loop that is still blocked after this wait ends with its process.
        thread.join(2 * _LOOP_GRACE_S)

    def _serve(self, loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        while not over.is_set():
            run_loop(loop)
        close_loop(loop)


def prepare_loop(
    loop: asyncio.AbstractEventLoop, owners: WeakKeyDictionary[asyncio.Task[Any], str | None]
) -> None:
    """Make the loop record the component of each asyncio task, and log errors in one line."""

    def factory(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context")
        owners[task] = COMPONENT.get() if context is None else context.get(COMPONENT)
        return task

    # The type stub of task factories lacks the options.
    loop.set_task_factory(cast("Any", factory))
    loop.set_exception_handler(_say_exception)


def run_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Run the loop until it is stopped; return False if an error ended it: ``sys.exit`` in a bolt's
    own asyncio task.
    """
    try:
        loop.run_forever()
    except raised() as error:
        log.warning(
            "a task on the loop of the bolts raised %s; the loop goes on",
            reason_of(error), extra={"event": "loop_exception"},
        )  # fmt: skip
        return False
    return True


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the asyncio tasks that bolts left behind, and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_LOOP_GRACE_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _say_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log in one line the error of an asyncio task that no call awaited."""
    if loop.is_closed():
        # Errors of tasks that swallowed their cancellation, which was logged before.
        return
    error = context.get("exception")
    log.warning(
        "on the loop of the bolts: %s%s", context.get("message"),
        f": {reason_of(error)}" if error else "", extra={"event": "loop_exception"},
    )  # fmt: skip


class BlockedLook:
    """Checks twice per second, from a thread of its own, whether a loop is blocked."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        owners: Mapping[asyncio.Task[Any], str | None],
    ) -> None:
        """``owners`` maps each asyncio task to its component."""
        self._loop = loop
        self._loop_thread = thread
        self._owners = owners
        self._over = threading.Event()
        self._said: dict[str, float] = {}
        # The asyncio task that blocks the loop.
        self.blocking: asyncio.Task[Any] | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="look at the loop", daemon=True).start()

    def end(self) -> None:
        """Stop checking."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # closed
                return
            if answered.wait(BLOCKED_S):
                continue
            suspect = asyncio.current_task(self._loop)
            if answered.wait(_AGAIN_S) or suspect is None:
                continue
            if asyncio.current_task(self._loop) is suspect:
                self.blocking = suspect
                self._say(suspect)
                while not answered.wait(_LOOK_S) and not self._over.is_set():
                    continue
                self.blocking = None

    def _say(self, task: asyncio.Task[Any]) -> None:
        component = self._owners.get(task) or "a bolt"
        now = time.monotonic()
        if now - self._said.get(component, -_SAID_S) < _SAID_S:
            return
        self._said[component] = now
        log.warning(
            "%s blocks the event loop of its process, and all AsyncBolts there, for more than "
            "%g s, at %s: await something, or use asyncio.to_thread, or a BasicBolt with threads",
            component, BLOCKED_S, self._place(), extra={"event": "loop_blocked"},
        )  # fmt: skip

    def _place(self) -> str:
        """Return the line of the bolt's code that the loop's thread is executing."""
        frame = sys._current_frames().get(self._loop_thread.ident or 0)  # noqa: SLF001 - documented, no alternative
        for place in traceback.extract_stack(frame) if frame else ():
            path = Path(place.filename)
            if path != _THREADING and not {_OURS, _ASYNCIO} & set(path.parents):
                return f"{place.filename}, line {place.lineno}, in {place.name}"
        return "a line that cannot be told"


log = logging.getLogger(__name__)

# Time that cancelled calls have to end when the attempt ends.
_GRACE_S = 2.0
# A call that is still running after this time has swallowed its cancellation.
_SWALLOWED_S = 1.0


class Coroutines:
    """``Caller`` of one task of an ``AsyncBolt``. Private methods run on the loop."""

    def __init__(
        self, loop: Loop, component: str, outputs: Outputs, limit: timedelta | None
    ) -> None:
        """Cancel calls after ``limit``. ``outputs`` only serve to check emissions."""
        self._loop = loop
        self._component = component
        self._outputs = outputs
        self._limit_s = limit.total_seconds() if limit else None
        self._context = contextvars.copy_context()
        self._context.run(COMPONENT.set, component)
        # Running calls, in the order in which they began.
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        # Calls that exceeded their limit, were cancelled, and are still running.
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

    def oldest(self) -> Call | None:
        return next(iter(self._tasks.copy()), None)

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
            if made is not None and (result := await made) is not None:
                check_result(result, execute)
        except BaseException as error:  # noqa: BLE001 - the loop lives on, and the tuple fails
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
        """Cancel a call that exceeds its limit."""
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
        """Return the error of the method: raised here, a ``SystemExit`` would end the loop."""
        try:
            made = method(*arguments)
            if inspect.isawaitable(made):
                await made
        except BaseException as error:  # noqa: BLE001 - the task's thread raises it again
            return error
        return None

    async def _cancelled(self) -> int:
        """Cancel all calls, and return how many of them are still running."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, going_on = await asyncio.wait(tasks, timeout=_GRACE_S)
        return len(going_on)

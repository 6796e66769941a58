"""The event loop of a process, and the calls of its ``AsyncBolt``s, which run there.

The loop has one thread, shared by all tasks of ``AsyncBolt``s in the process.
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
from tiercel.spark_jobs.kinds.calls.call import (
    AsyncRecorder,
    Call,
    CallRecorder,
    Ended,
    Execute,
    UnderWay,
)
from tiercel.spark_jobs.reasons import reason_of

# Time after which a loop that does not answer is blocked.
BLOCKED_S = 0.5
_LOOK_S = 0.5
# A machine that is busy lets threads wait, with one task or another: the same one, again, blocks.
_AGAIN_S = 0.1
_SAID_S = 60.0
_OURS = Path(__file__).parent
_ASYNCIO = Path(asyncio.__file__).parent
_THREADING = Path(threading.__file__)
# Component that a coroutine works for; tasks that a bolt makes itself inherit it.
COMPONENT: ContextVar[str | None] = ContextVar("component", default=None)
# Time for tasks of the bolts' own when the loop ends.
_LOOP_GRACE_S = 1.0
# For ``asyncio.to_thread``; begun as they are needed, so that ``concurrency`` is the bound.
_THREADS = 1_000
T = TypeVar("T")


class Loop(Protocol):
    """An event loop that several tasks share. ``soon``, ``run`` and ``pause`` are for other
    threads than its own.
    """

    def time(self) -> float:
        """The loop's clock, in seconds."""
        ...

    def enter(self) -> None:
        """One more task uses it: the first one starts it."""
        ...

    def leave(self) -> None:
        """One task less: the last one ends it."""
        ...

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, and do not wait for it."""
        ...

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Run a coroutine to its end. Raises TimeoutError when that takes too long."""
        ...

    def pause(self, calls: UnderWay, seconds: float) -> None:
        """Let the loop work until something changes with these calls, at most so long."""
        ...

    def blocking(self) -> asyncio.Task[Any] | None:
        """The task that has kept the loop from any other for a while. Any thread."""
        ...


class ProcessLoop:
    """``Loop`` in its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._look: BlockedLook | None = None
        # Of the loop that runs: one that was blocked may end when another one runs already.
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
        # Python's own pool has a few threads per core, and calls would wait for one unseen.
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
        # A blocked loop ends with its process.
        thread.join(2 * _LOOP_GRACE_S)

    def _serve(self, loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        while not over.is_set():
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - sys.exit in a task of a bolt's own: the others go on
                log.warning(
                    "a task on the loop of the bolts raised %s; the loop goes on",
                    reason_of(error), extra={"event": "loop_exception"},
                )  # fmt: skip
        close_loop(loop)


def prepare_loop(
    loop: asyncio.AbstractEventLoop, owners: WeakKeyDictionary[asyncio.Task[Any], str | None]
) -> None:
    """Have the loop note for which component each task works, and log in one line."""

    def factory(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context")
        owners[task] = COMPONENT.get() if context is None else context.get(COMPONENT)
        return task

    # The type of task factories knows no options.
    loop.set_task_factory(cast("Any", factory))
    loop.set_exception_handler(_say_exception)


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that are left, the bolts' own, and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_LOOP_GRACE_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _say_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log in one line what a task of a bolt's own raised, that no call awaited."""
    if loop.is_closed():
        # Of tasks that swallowed their cancellation, as was told.
        return
    error = context.get("exception")
    log.warning(
        "on the loop of the bolts: %s%s", context.get("message"),
        f": {reason_of(error)}" if error else "", extra={"event": "loop_exception"},
    )  # fmt: skip


class BlockedLook:
    """Looks at a loop from its own thread, twice per second."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        owners: Mapping[asyncio.Task[Any], str | None],
    ) -> None:
        """``owners`` has the component of each task."""
        self._loop = loop
        self._loop_thread = thread
        self._owners = owners
        self._over = threading.Event()
        self._said: dict[str, float] = {}
        # The task that blocks the loop.
        self.blocking: asyncio.Task[Any] | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="look at the loop", daemon=True).start()

    def end(self) -> None:
        """Look no more."""
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
        """The line of the bolt's own code in which the loop stands."""
        frame = sys._current_frames().get(self._loop_thread.ident or 0)  # noqa: SLF001 - documented, and the only way
        for place in traceback.extract_stack(frame) if frame else ():
            path = Path(place.filename)
            if path != _THREADING and not {_OURS, _ASYNCIO} & set(path.parents):
                return f"{place.filename}, line {place.lineno}, in {place.name}"
        return "a line that cannot be told"


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

"""The engine in this process: runs bolt tasks in turn, on inboxes and a ledger in memory."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.limits import MemoryLimits
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.metrics.contract import KnownError
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.kinds.calls.call import UnderWay
from tiercel.spark_jobs.kinds.calls.coroutines import prepare_loop, run_loop
from tiercel.spark_jobs.kinds.calls.threads import ThreadCalls
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.topology.bolt_settings import batching_of, rates_of
from tiercel.spark_jobs.topology.graph import (
    Topology,
    bolt_tasks,
    has_cycle,
    inboxes_of,
    ledger_spec_of,
)
from tiercel.spark_jobs.tracing.process import of_this_process
from tiercel.workers.testing.engine import Copier, CopyingInboxes, LocalClusterError, SimulatedClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# For topologies with a cycle of bolts, where tuples may circulate forever; others always end.
_MOST_STEPS = 100_000
# A timer is due at its time; large floats cannot tell it from the nanosecond before.
_RESOLUTION_S = 1e-6
# Real time to wait for a socket, after which its call counts as waiting.
_PATIENCE_S = 1.0
# Real time to wait for the next answer of a ``Bolt``'s threads, and between two looks for it.
_ANSWER_S = 5.0
_LOOK_S = 0.001


class MemoryEngine:
    """``Engine`` without servers. Deterministic: the same parcels give the same run."""

    def __init__(
        self, topology: Topology, clock: SimulatedClock, now: Callable[[], datetime]
    ) -> None:
        """``now`` is the date and time of the ``clock``, as components see it."""
        self._topology = topology
        self._date = now
        self._clock = clock
        self._loop = SimulatedLoop(clock)
        self.ledger = MemoryLedger(ledger_spec_of(topology, ()), clock)
        self.metrics = MemoryMetrics()
        self.state = MemoryStateStore()
        self.inboxes = _CopyingMemoryInboxes(topology, clock)
        self.run_id = "local-cluster"
        self._counting = Counting(self.metrics)
        self._attempts: list[Attempt] = []
        # Clock of the bolts, in seconds: it moves only when incomplete batches wait.
        self._now = 0.0
        # Roots of tuples whose threads have not answered in time.
        self._silent: set[int] = set()
        batches = [batching_of(spec) for spec in topology.bolts.values()]
        self._longest_wait_s = max([one.wait_s for one in batches if one], default=0.0)

    @property
    def next_at(self) -> float | None:
        """Time at which a sleeping call of an ``AsyncBolt`` goes on, or a tuple begins that waits
        for a rate limit or for its order; now if a thread of a ``Bolt`` has answered.
        """
        if self._are_answered():
            return self._clock()
        moments = [self._loop.next_at, *(attempt.next_at for attempt in self._attempts)]
        return min((each for each in moments if each is not None), default=None)

    def start(self) -> None:
        topology = self._topology
        tasks = bolt_tasks(topology)
        self.inboxes.adopt(self.run_id, inboxes_of(topology))
        self.ledger.begin(self.run_id)
        around = Around(
            run=self.run_id,
            topology=topology,
            inboxes=self.inboxes,
            ledger=self.ledger if topology.config.ackers else None,
            state=self.state,
            counting=self._counting,
            config=topology.config.as_mapping(),
            key=b"local-cluster",
            suspicion=Suspicion(self.run_id, None, None),
            clock=lambda: self._now,
            wall=lambda: self._date().timestamp(),
            loop=self._loop,
            threads=partial(AwaitedThreads, self._clock),
            limits={
                component: MemoryLimits(rate, self._clock)
                for component, rate in rates_of(topology).items()
            },
            tracing=of_this_process(),
        )
        self._attempts = [attempt_at(around, task, threading.Event()) for task in tasks]

    def work(self) -> bool:
        """Run task by task until none has work left; return True if any had work.

        Raises LocalClusterError if a cycle of bolts does not end.
        """
        steps = 0
        self._loop.wake()
        while self._worked() or self._worked_after_waiting() or self._threads_answered():
            steps += 1
            if steps > _MOST_STEPS and has_cycle(self._topology):
                raise LocalClusterError(
                    f"tuples still circulate after {_MOST_STEPS:,} steps: the bolts form a "
                    "cycle, which one of them must end"
                )
        self._counting.flush()
        return steps > 0

    def _worked(self) -> bool:
        """Give each task a turn; return True if any had work."""
        return any([attempt.turn() for attempt in self._attempts])  # noqa: C419 - every task has its turn

    def _worked_after_waiting(self) -> bool:
        """Execute incomplete batches: nothing moves, so no more tuples come for them."""
        self._now += self._longest_wait_s
        return self._longest_wait_s > 0 and self._worked()

    def _threads_answered(self) -> bool:
        """Wait in real time for a thread that has a tuple; return True if one answers."""
        held = {root for attempt in self._attempts for root in attempt.kind.copy.held.threads}
        if held <= self._silent:
            return False
        until = time.monotonic() + _ANSWER_S
        while not self._are_answered():
            if time.monotonic() > until:
                self._silent = held
                return False
            time.sleep(_LOOK_S)
        return True

    def _are_answered(self) -> bool:
        return any(attempt.kind.copy.answers.waiting for attempt in self._attempts)

    def tracebacks(self) -> Sequence[KnownError]:
        return self.metrics.traces()

    def close(self) -> None:
        while self._attempts:
            self._attempts.pop().close()


class _CopyingMemoryInboxes(CopyingInboxes, MemoryInboxes):
    def __init__(self, topology: Topology, clock: SimulatedClock) -> None:
        super().__init__(clock=clock)
        own = partial(MemoryInboxes.append, self), partial(MemoryInboxes.fence, self)
        self.copier = Copier(*own, topology, bounded=False)


class SimulatedLoop:
    """``Loop`` of a simulated cluster. One thread only.

    A sleeping call ends when simulated time reaches its end. A call that waits for a socket or a
    thread is waited for in real time.
    """

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._users = 0
        self._loop: _Steered | None = None

    @property
    def next_at(self) -> float | None:
        """Simulated time of the loop's next timer; None: nothing sleeps."""
        return None if self._loop is None else self._loop.next_at()

    def time(self) -> float:
        return self._clock()

    def enter(self) -> None:
        """Enter the loop. Raises LocalClusterError inside another running event loop."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise LocalClusterError(
                "AsyncBolts have an event loop of their own: run the cluster in a plain test, or "
                "with asyncio.to_thread"
            )
        self._users += 1
        if self._loop is None:
            self._loop = _Steered(self._clock)
            prepare_loop(self._loop, WeakKeyDictionary())

    def leave(self) -> None:
        self._users -= 1
        loop = self._loop
        if not self._users and loop is not None:
            self._loop = None
            for task in asyncio.all_tasks(loop):
                task.cancel()
            # A task that swallows the cancellation is abandoned.
            loop.run_until_still(lambda: False)
            loop.lasting = True
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def soon(self, function: Callable[[], object]) -> None:
        self._running().call_soon(function)

    def run(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        timeout_s: float | None = None,  # noqa: ARG002 - nothing takes real time here
    ) -> T:
        """Run a coroutine to its end; simulated time moves while it sleeps.

        Raises LocalClusterError if it waits for an event that will never happen.
        """
        loop = self._running()
        task = loop.create_task(make())
        loop.run_until_still(lambda: not task.done())
        while not task.done():
            moment = loop.next_at()
            if moment is None:
                task.cancel()
                raise LocalClusterError(
                    "prepare, flush or cleanup of an AsyncBolt waits for an event that never comes"
                )
            self._clock.move_to(moment)
            loop.run_until_still(lambda: not task.done())
        return task.result()

    def pause(self, calls: UnderWay, seconds: float) -> None:
        """Wait for sockets and threads, and move simulated time if nothing else can go on."""
        loop = self._running()
        loop.run_until_still(lambda: calls.under_way > 0)
        moment = loop.next_at()
        if calls.changed.is_set() or moment is None or moment > self._clock() + seconds:
            return
        self._clock.move_to(moment)
        loop.run_until_still(lambda: calls.under_way > 0)

    def wake(self) -> None:
        """Run due callbacks, including tasks that bolts have created themselves."""
        if self._loop is not None:
            self._loop.run_until_still(lambda: False)

    def blocking(self) -> asyncio.Task[Any] | None:
        return None

    def _running(self) -> _Steered:
        if self._loop is None:
            raise RuntimeError("the event loop is not running: enter it first")
        return self._loop


class AwaitedThreads(ThreadCalls):
    """Real threads that are always waited for, so that the same test gives the same run."""

    def __init__(self, clock: SimulatedClock, component: str, outputs: Outputs, most: int) -> None:
        """Gates and limits use this clock."""
        super().__init__(component, outputs, most)
        self._clock = clock

    def time(self) -> float:
        return self._clock()

    def pause(self, calls: UnderWay, seconds: float) -> None:  # noqa: ARG002 - waits until all have ended
        while calls.under_way:
            calls.changed.wait()
            calls.changed.clear()


class _Steered(asyncio.SelectorEventLoop):
    """An event loop that stops when nothing can go on at the clock's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._steered_by = clock
        self._handles: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._ran_at = clock()
        self.waits: Callable[[], bool] = lambda: False
        # Number of threads that work for the loop.
        self.outside = 0
        # True while it is shut down: it then waits like any loop.
        self.lasting = False
        super().__init__(_Still(self))
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        return self._steered_by()

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        heapq.heappush(self._handles, (when, next(self._numbers), handle))
        return handle

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.outside += 1
        future.add_done_callback(self._returned)
        return future

    def run_until_still(self, waits: Callable[[], bool]) -> None:
        """Run ready callbacks, and wait for sockets and threads while ``waits()`` is true."""
        self.waits = waits
        while not run_loop(self):
            pass
        self._ran_at = self.time()

    def next_at(self) -> float | None:
        """Return the time of the next timer that has not run; None if there is none."""
        handles = self._handles
        ran = self._ran_at + _RESOLUTION_S
        while handles and (handles[0][2].cancelled() or handles[0][0] <= ran):
            heapq.heappop(handles)
        return handles[0][0] if handles else None

    def _returned(self, future: object) -> None:  # noqa: ARG002 - a callback
        self.outside -= 1


class _Still(selectors.DefaultSelector):
    """Waits in real time for sockets and threads only; stops its loop if there is nothing."""

    def __init__(self, loop: _Steered) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self._loop.lasting:
            return super().select(timeout)
        waits = self._loop.waits()
        if waits and self._loop.outside:
            return super().select(None)
        # One socket is the loop's own, which wakes it from threads.
        if waits and len(self.get_map()) > 1:
            events = super().select(_PATIENCE_S)
        if not events:
            self._loop.stop()
        return events

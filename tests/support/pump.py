"""Runs a topology's bolt tasks in turn, in this thread: spout emitters, inboxes and ledger in
memory. No Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.emitter import SpoutEmitter
from tests.support.reasons import unplaced
from tiercel.acker.effects import Effect, Following, LocalEffect
from tiercel.acker.ids import RootIds
from tiercel.acker.inbox.chunk import Appended, Chunk, Parcel, decode
from tiercel.acker.inbox.contract import Bounds, Claims, Inboxes, Sender
from tiercel.acker.inbox.memory import MemoryInbox, MemoryInboxes
from tiercel.acker.inbox.redis import RedisInbox
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Ledger, Outcomes
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.queues.message.identity import Identified
from tiercel.queues.spout import Spout
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running import commit
from tiercel.spark_jobs.running.around import Around, ticks_of
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.state.store import StateStore
from tiercel.spark_jobs.topology.graph import Topology, bolt_tasks, inboxes_of
from tiercel.workers.testing.engine import SimulatedClock
from tiercel.workers.testing.memory_engine import AwaitedThreads, SimulatedLoop

RUN = "run"


class Killed(KeyboardInterrupt):
    """The process has been killed. No bolt's failure, as every other exception would be."""


@contextmanager
def killed_after(effects: int, on_seal: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Kill the process after this many of the calls around its steps; the block ends there.

    These calls are counted, in this order: begin with the state, seal, each write of a state, each
    call of the ledger, each append, finish. The death may also fall between calls that are sent
    together. ``on_seal`` is called after each seal.
    """
    left = [effects]
    seals: list[Effect[bool]] = []

    def spend() -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1

    def some(batch: Sequence[Any], *, in_turn: bool = False) -> list[Any]:
        replies: list[Any] = []
        for effect in batch:
            if in_turn and replies and not replies[-1]:
                break
            spend()
            replies.append(effect.perform())
            if any(effect is seal for seal in seals):
                on_seal()
        return replies

    with pytest.MonkeyPatch.context() as patched, suppress(Killed):
        patched.setattr(commit, "perform_all", some)
        patched.setattr(commit, "perform_in_turn", partial(some, in_turn=True))
        patched.setattr(MemoryInbox, "take", _taking(MemoryInbox.take, spend))
        for inbox in (MemoryInbox, RedisInbox):
            patched.setattr(inbox, "seal", _noted(inbox.seal, seals))
        yield


def _taking(take: Callable[..., list[Any]], spend: Callable[[], None]) -> Callable[..., list[Any]]:
    """Return ``take`` with the calls that it makes beside taking counted."""

    def taking(
        self: MemoryInbox, tuples: int, size: int, wait: timedelta, finishing: int | None,
        claims: Claims, *, then: Following[Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        if finishing is not None:
            spend()
        if then is not None:
            begin = then.effect.perform
            then.effect = LocalEffect(lambda: spend() or begin())
        return take(self, tuples, size, wait, finishing, claims, then=then)

    return taking


def _noted(
    seal: Callable[..., Effect[bool]], seals: list[Effect[bool]]
) -> Callable[..., Effect[bool]]:
    """Return ``seal`` with its effects added to ``seals``."""

    def sealing(*args: Any) -> Effect[bool]:
        seals.append(seal(*args))
        return seals[-1]

    return sealing


@contextmanager
def killed_in(store: type, method: str) -> Iterator[None]:
    """Kill the process before this call of a store; the block ends there."""

    def die(*_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched, suppress(Killed):
        patched.setattr(store, method, die)
        yield


class Source(Spout):
    """A spout that only declares its fields."""

    def __init__(self, fields: str = "word string") -> None:
        self.output_fields = fields


class Pump:
    """``feed`` tuples, ``run`` until idle, look at ``acked`` and ``failed``.

    Reasons are without the line that raised.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        ledger: Ledger | bool = True,
        spout: str | None = None,
        state: StateStore | None = None,
        inboxes: Inboxes | None = None,
        book: MemoryCaseBook | None = None,
        simulated: SimulatedClock | None = None,
        run: str = RUN,
        standstill_s: float = 0.0,
    ) -> None:
        """On a ``simulated`` clock, calls sleep and waits take their time."""
        self.topology = topology
        spec = LedgerSpec(
            topology=topology.name,
            urls=(),
            shards=1,
            owners=topology.spout_tasks,
            message_timeout=timedelta(seconds=30),
        )
        self.ledger: Any = MemoryLedger(spec) if isinstance(ledger, bool) else ledger
        self.metrics = MemoryMetrics()
        self.state = state or MemoryStateStore()
        self.book = book or MemoryCaseBook()
        self.inboxes: Inboxes = inboxes or MemoryInboxes(Bounds(tuples=1 << 40, bytes=1 << 40))
        self.tasks = bolt_tasks(topology)
        self.inboxes.adopt(run, inboxes_of(topology))
        self.ledger.begin(run)
        self.counting = Counting(self.metrics)
        self.now = 0.0
        self.around = Around(
            run=run,
            topology=topology,
            inboxes=self.inboxes,
            ledger=self.ledger if ledger else None,
            state=self.state,
            counting=self.counting,
            config={"redis_url": "none"},
            key=b"key",
            suspicion=Suspicion(run, self.book, self.ledger if ledger else None),
            ticks=ticks_of(topology),
            clock=lambda: self.now,
            standstill_s=standstill_s,
        )
        if simulated is not None:
            loop = SimulatedLoop(simulated)
            threads = partial(AwaitedThreads, simulated)
            self.around = replace(self.around, wall=simulated, loop=loop, threads=threads)
        self.attempts = {
            task: attempt_at(self.around, task, threading.Event()) for task in self.tasks
        }
        self.feeds = [self.ledger.feed(owner) for owner in range(1, topology.spout_tasks + 1)]
        self.acked: list[int] = []
        self.failed: dict[int, str] = {}
        self.reset: list[int] = []
        self._roots = RootIds(timedelta(seconds=60))
        self.emitters = {
            component: [
                SpoutEmitter(topology, component, task) for task in topology.task_ids(component)
            ]
            for component in topology.spouts
        }
        self.spout = spout or next(iter(topology.spouts))
        self._numbers: dict[int, int] = {}

    def feed(
        self,
        *rows: Sequence[Any],
        spout: str | None = None,
        tracked: bool = True,
        stream: str = "default",
        identities: Sequence[Identified | None] | None = None,
    ) -> list[int]:
        """Emit these tuples; return their roots."""
        roots = self._roots.draw(len(rows))
        emitter = self.emitters[spout or self.spout][0]
        known = identities or [None] * len(rows)
        for root, values, identity in zip(roots, rows, known, strict=True):
            emitter.emit(values, root if tracked else None, stream, identity)
        return roots

    def send(self) -> None:
        """Register the emitted tuples, and append them to the inboxes."""
        for emitters in self.emitters.values():
            for emitter in emitters:
                emission = emitter.take()
                assert (
                    self.ledger.register(emitter.task_id, emission.roots, emission.ack_vals) == []
                )
                self.append(emitter.task_id, emission.parcels)

    def append(self, task: int, parcels: Sequence[Parcel]) -> None:
        number = self._numbers[task] = self._numbers.get(task, 0) + 1
        for effect in self.inboxes.append(
            self.around.run, Sender(task=task, attempt=1), number, parcels
        ):
            assert effect.perform() is Appended.DONE

    def take_over(self, *tasks: int) -> None:
        """Kill the processes of these tasks, all by default.

        New ones begin with the contents of the inboxes.
        """
        tracked = self.around.ledger
        self.around = replace(self.around, suspicion=Suspicion(self.around.run, self.book, tracked))
        for task in tasks or self.tasks:
            self.attempts[task] = attempt_at(self.around, task, threading.Event())
            self.attempts[task].recover()

    def work(self, *tasks: int) -> bool:
        """Let these tasks work, all by default, until they have nothing left.

        Returns True if they had anything.
        """
        worked = False
        for task in tasks or self.tasks:
            while self.attempts[task].turn():
                worked = True
        return worked

    def run(self) -> None:
        """Send the fed tuples, and work until idle."""
        self.send()
        while self.work():
            continue
        self.counting.flush()
        self.read()

    def begin_run(self, run: str) -> None:
        """Begin another run as the driver does, with the contents of the inboxes."""
        self.inboxes.adopt(run, inboxes_of(self.around.topology))
        self.ledger.begin(run)
        self.around = replace(self.around, run=run)
        self.take_over()

    def chunks(self, component: str) -> list[Chunk]:
        """Return the chunks waiting in the inboxes of a bolt's tasks, without taking them."""
        found = dict(self.inboxes.drain(self.around.run))
        return [
            decode(entry.payload)
            for task in self.topology.task_ids(component)
            for entry in found.get(task, [])
        ]

    def rows(self, component: str) -> list[tuple[Any, ...]]:
        """Return the values of the waiting tuples."""
        return [
            tuple(row.values())
            for chunk in self.chunks(component)
            for row in chunk.values.to_pylist()
        ]

    def work_at(self, component: str) -> None:
        """Send the fed tuples, and let the tasks of one bolt work."""
        self.send()
        self.work(*self.topology.task_ids(component))

    def snapshots(self) -> list[tuple[int, bytes]]:
        """Return the bolts' attributes as the next run's driver finds them, by task.

        This ends the run.
        """
        self.inboxes.adopt("next", inboxes_of(self.around.topology))
        return self.inboxes.snapshots("next")

    def waiting(self) -> int:
        """Count the tuples in all inboxes."""
        return sum(
            one.tuples for one in self.inboxes.figures(inboxes_of(self.around.topology)).values()
        )

    def read(self) -> None:
        """Read the outcomes so far; each root has one."""
        for feed in self.feeds:
            outcomes: Outcomes = feed.read(timedelta(0))
            self.acked += outcomes.acked
            self.failed |= {
                failure.root: f"{failure.component}: {unplaced(failure.reason)}"
                for failure in outcomes.failed
            }
            self.reset += outcomes.reset
        assert len(set(self.acked)) == len(self.acked)
        assert not set(self.acked) & self.failed.keys()

"""The engine in this process: every bolt task in turn, on inboxes and a ledger in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from tiercel.acker.limits.memory import MemoryLimits
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.metrics.traces import KnownError
from tiercel.queues.inbox.memory import MemoryInboxes
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.spark.run import ledger_spec_of
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.topology.batching import batching_of
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.limits import rates_of
from tiercel.spark_jobs.topology.placement import bolt_tasks, has_cycle, inboxes_of
from tiercel.workers.testing.capture import CopyingInboxes
from tiercel.workers.testing.clock import SimulatedClock
from tiercel.workers.testing.errors import LocalClusterError
from tiercel.workers.testing.simulated_loop import AwaitedThreads, SimulatedLoop

# For topologies in which tuples can go round for ever; without a cycle of bolts every round ends.
_MOST_STEPS = 100_000


class MemoryEngine:
    """``Engine`` without services. The same parcels give the same run."""

    def __init__(self, topology: Topology, clock: SimulatedClock) -> None:
        self._topology = topology
        self._clock = clock
        self._loop = SimulatedLoop(clock)
        self.ledger = MemoryLedger(ledger_spec_of(topology, ()), clock)
        self.metrics = MemoryMetrics()
        self.state = MemoryStateStore()
        self.inboxes = CopyingInboxes(MemoryInboxes(clock=clock), topology, bounded=False)
        self.run_id = "local-cluster"
        self._counting = Counting(self.metrics)
        self._attempts: list[Attempt] = []
        # Time of the bolts, in seconds: it passes only where tuples wait for company.
        self._now = 0.0
        batches = [batching_of(spec) for spec in topology.bolts.values()]
        self._longest_wait_s = max([one.wait_s for one in batches if one], default=0.0)

    @property
    def next_at(self) -> float | None:
        """The time at which a call of an ``AsyncBolt`` goes on that sleeps, or a tuple begins that
        waits for a rate limit or in its order.
        """
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
            wall=self._clock,
            loop=self._loop,
            threads=partial(AwaitedThreads, self._clock),
            limits={
                component: MemoryLimits(rate, self._clock)
                for component, rate in rates_of(topology).items()
            },
        )
        self._attempts = [attempt_at(around, task, threading.Event()) for task in tasks]

    def work(self) -> None:
        """Task by task, until none has anything left.

        Raises LocalClusterError where a cycle of bolts does not end.
        """
        steps = 0
        self._loop.wake()
        while self._worked() or self._worked_after_waiting():
            steps += 1
            if steps > _MOST_STEPS and has_cycle(self._topology):
                raise LocalClusterError(
                    f"tuples still go round after {_MOST_STEPS:,} steps: the bolts are a "
                    "cycle, which one of them must end"
                )
        self._counting.flush()

    def _worked(self) -> bool:
        """Give each task a turn; returns whether one had anything to do."""
        return any([attempt.turn() for attempt in self._attempts])  # noqa: C419 - all of them, each time

    def _worked_after_waiting(self) -> bool:
        """Nothing moves, so no company comes: batches that are not full have waited."""
        self._now += self._longest_wait_s
        return self._longest_wait_s > 0 and self._worked()

    def tracebacks(self) -> Sequence[KnownError]:
        return self.metrics.traces()

    def close(self) -> None:
        while self._attempts:
            self._attempts.pop().close()

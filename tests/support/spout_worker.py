"""A spout worker on memory twins: its loop in its own thread, with the real clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from tests.support.orders import MemoryControl
from tests.support.presences import MemoryPresences
from tiercel.acker.ids import RootIds
from tiercel.acker.inbox.contract import Inboxes
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Ledger
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.metrics.contract import Tally
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.queues.spout import Spout
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.control.contract import Control
from tiercel.workers.control.presence import Holder, Lease, SpoutSeats
from tiercel.workers.spout.collector import TaskCollector
from tiercel.workers.spout.loop import Orders, SpoutParts, SpoutSettings, SpoutTask
from tiercel.workers.spout.outbox import Outbox
from tiercel.workers.spout.outcomes import OutcomeReader, OutcomeSource
from tiercel.workers.spout.trees import OutcomeTeller

SPEC = LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=timedelta(seconds=30))
RUN = "1-run"


class MemoryWorker:
    """The worker of a topology's first spout task. There is no driver before ``attend``."""

    def __init__(
        self,
        topology: Topology,
        spout: Spout,
        settings: SpoutSettings,
        *,
        tracked: bool = True,
        ledger: Ledger | None = None,
        inboxes: Inboxes | None = None,
        control: Control | None = None,
        lease: Lease | None = None,
        outcomes: OutcomeSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        component = topology.component_of(1)
        self.topology = topology
        self.spout = spout
        self.ledger: Any = ledger or MemoryLedger(SPEC)
        self.inboxes: Any = inboxes or MemoryInboxes()
        self.control: Any = control or MemoryControl()
        # The lease's clock stands still, because renewing is the driver's job.
        presences = MemoryPresences(lambda: 0.0)
        self.lease = lease or Lease(presences)
        self.spout_seats = SpoutSeats(presences)
        self.metrics = MemoryMetrics()
        self.tally = Tally(self.metrics, component, 1, clock)
        self.orders = Orders(self.control, attend=partial(self.spout_seats.report, "worker", 1))
        self.outbox = Outbox(
            ledger=self.ledger,
            inboxes=self.inboxes,
            lease=self.lease,
            owner=1,
            topology=topology,
        )
        parts = SpoutParts(
            teller=OutcomeTeller(spout),
            collector=TaskCollector(
                topology,
                component,
                1,
                self.tally,
                RootIds(timedelta(seconds=30)) if tracked else None,
            ),
            ledger=self.ledger,
            outbox=self.outbox,
            outcomes=outcomes or OutcomeReader(self.ledger, 1),
            orders=self.orders,
            tally=self.tally,
            clock=clock,
        )
        self.task = SpoutTask(parts, settings)
        self.context = topology.spout_context_of(1, wake=self.task.wake, count=self.tally.add)

    def attend(self, run: str = RUN, *, starting: bool = False) -> None:
        """Let a driver attend, with this run."""
        self.lease.take(Holder(driver="driver", run=run, starting=starting))

    def leave(self) -> None:
        """Let the driver leave."""
        self.lease.leave("driver")

    @contextmanager
    def working(self, config: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Run the task until the end of the block."""
        thread = threading.Thread(target=self.task.run, args=(config or {}, self.context))
        thread.start()
        try:
            yield
        finally:
            self.task.stop()
            thread.join(10)
            assert not thread.is_alive()
            self.spout_seats.leave("worker", 1)

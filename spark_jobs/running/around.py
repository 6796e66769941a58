"""Everything that the bolt tasks of one process share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tiercel.acker.inbox.contract import Inboxes
from tiercel.acker.ledger import Ledger
from tiercel.acker.limits import RateLimits
from tiercel.spark_jobs.bolts.streams import is_system
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.kinds.calls.call import Caller
from tiercel.spark_jobs.kinds.calls.coroutines import Loop, ProcessLoop
from tiercel.spark_jobs.kinds.calls.threads import ThreadCalls
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.store import StateStore
from tiercel.spark_jobs.suspects.watchdog import CallLimit
from tiercel.spark_jobs.topology.graph import Topology

# With any timeout: a machine that is busy with other things lets processes wait for seconds.
_SHORTEST_HANG_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Around:
    """Everything that the bolt tasks of one process share."""

    run: str
    topology: Topology
    inboxes: Inboxes
    ledger: Ledger | None
    state: StateStore | None
    counting: Counting
    # Settings that bolts are given besides their own: addresses.
    config: Mapping[str, Any]
    # Signs the snapshots of the run.
    key: bytes
    suspicion: Suspicion
    # The bolt tasks of each process of the run; none where they are all in this one, by turns.
    hosts: Sequence[Sequence[int]] = ()
    clock: Callable[[], float] = field(default=time.monotonic)
    # For times that outlive the process.
    wall: Callable[[], float] = field(default=time.time)
    # For bolts with calls under way: the loop of the coroutines, and what runs others in threads.
    loop: Loop = field(default_factory=ProcessLoop)
    threads: Callable[[str, Outputs, int], Caller] = ThreadCalls
    # Rate limits of the bolts that have one, by component.
    limits: Mapping[str, RateLimits] = field(default_factory=dict)
    # Seconds between two ticks, by component.
    ticks: Mapping[str, float] = field(default_factory=dict)

    def beside(self, task: int) -> frozenset[int]:
        """The bolt tasks in the process of this one, itself among them."""
        return next((frozenset(host) for host in self.hosts if task in host), frozenset())

    @property
    def longest_call(self) -> timedelta | None:
        """Return how long one call of a bolt may last that says nothing of it.

        None: without limit, for no message times out.
        """
        config = self.topology.config
        if not config.enable_message_timeouts:
            return None
        return timedelta(seconds=max(_SHORTEST_HANG_S, config.message_timeout_secs))

    def call_limit(self, task: int) -> CallLimit | None:
        """Return how long a call of a task's bolt may last where ``execute_timeout_secs`` says so.

        Where that is longer than a message's timeout, the timeout begins anew every third of
        itself.
        """
        component = self.topology.component_of(task)
        topology = self.topology
        config = topology.config if is_system(component) else topology.config_of(component)
        if config.execute_timeout_secs is None:
            return None
        timeout_s = config.message_timeout_secs
        lasts = config.enable_message_timeouts and config.execute_timeout_secs > timeout_s
        return CallLimit(config.execute_timeout_secs, timeout_s / 3 if lasts else None)

    def call_lasts(self, task: int) -> timedelta | None:
        """Return how long a call of a task's bolt may last; None: without limit."""
        limit = self.call_limit(task)
        return self.longest_call if limit is None else timedelta(seconds=limit.ends_s)


def ticks_of(topology: Topology) -> dict[str, float]:
    """Return the seconds between two ticks of each bolt that has ticks."""
    bolts = [bolt for bolt in topology.bolts if not is_system(bolt)]
    periods = {bolt: topology.config_of(bolt).tick_tuple_freq_secs for bolt in bolts}
    return {bolt: period_s for bolt, period_s in periods.items() if period_s is not None}

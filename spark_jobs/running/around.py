"""Objects that all bolt tasks of one process share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from tiercel.acker.inbox.contract import Inboxes
from tiercel.acker.ledger import Ledger
from tiercel.acker.limits import RateLimits
from tiercel.spark_jobs.bolts.streams import is_system
from tiercel.spark_jobs.bolts.windowed_bolt import WindowedBolt
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.kinds.calls.call import Caller
from tiercel.spark_jobs.kinds.calls.coroutines import Loop, ProcessLoop
from tiercel.spark_jobs.kinds.calls.threads import ThreadCalls
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.store import StateStore
from tiercel.spark_jobs.suspects.watchdog import CallLimit
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.tracing.spans import Tracing
from tiercel.spark_jobs.tracing.task import TaskTracing

E = TypeVar("E")
# Lower bound for short timeouts: on a busy machine, a process may be descheduled for seconds.
_SHORTEST_HANG_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Around:
    """Objects that all bolt tasks of one process share."""

    run: str
    topology: Topology
    inboxes: Inboxes
    ledger: Ledger | None
    state: StateStore | None
    counting: Counting
    # Addresses that bolts are given in addition to their own settings.
    config: Mapping[str, Any]
    # Key that signs the snapshots of the run.
    key: bytes
    suspicion: Suspicion
    # The bolt tasks of each process of the run; empty if this process runs all of them in turn.
    hosts: Sequence[Sequence[int]] = ()
    clock: Callable[[], float] = field(default=time.monotonic)
    # Wall clock, for times that outlive the process.
    wall: Callable[[], float] = field(default=time.time)
    # For bolts with concurrent calls: the event loop of coroutines, and the runner of threads.
    loop: Loop = field(default_factory=ProcessLoop)
    threads: Callable[[str, Outputs, int], Caller] = ThreadCalls
    # Rate limits of the bolts that have one, by component.
    limits: Mapping[str, RateLimits] = field(default_factory=dict)
    # Seconds between two ticks, by component.
    ticks: Mapping[str, float] = field(default_factory=dict)
    # Reads which components send nothing for now: bolts that an operator has paused, and spouts
    # that are deactivated, cut off, without a worker, or hold as many messages as they may. Raises
    # RedisUnavailableError.
    read_paused: Callable[[], AbstractSet[str]] = frozenset
    # These components, as read last.
    paused: set[str] = field(default_factory=set)
    # Seconds for which a windowed bolt lets no event time pass in a new run, in which messages come
    # again in any order.
    standstill_s: float = 0.0
    # The spans of this process; None: no traces.
    tracing: Tracing | None = None

    def look_for_pauses(self) -> None:
        """Read which bolts are paused. Raises RedisUnavailableError."""
        found = self.read_paused()
        # In this order no task sees a bolt that stays paused as running.
        self.paused.update(found)
        self.paused.intersection_update(found)

    def traced(self, execution: E, task: int) -> E:
        """Return the ``Execution`` of a task's bolt: with spans if there are traces."""
        tracing = self.tracing_of(task)
        return execution if tracing is None else tracing.traced(execution)

    def tracing_of(self, task: int) -> TaskTracing | None:
        """Return the spans of one task; None: no traces."""
        if self.tracing is None or is_system(component := self.topology.component_of(task)):
            return None
        return TaskTracing(self.tracing, component, task)

    def beside(self, task: int) -> frozenset[int]:
        """Return the bolt tasks in this task's process, including the task itself."""
        return next((frozenset(host) for host in self.hosts if task in host), frozenset())

    @property
    def longest_call(self) -> timedelta | None:
        """Limit of one call of a bolt without ``execute_timeout_secs``.

        None: no limit, because messages do not time out.
        """
        config = self.topology.config
        if not config.enable_message_timeouts:
            return None
        return timedelta(seconds=max(_SHORTEST_HANG_S, config.message_timeout_secs))

    def call_limit(self, task: int) -> CallLimit | None:
        """Return the limit of one call of a task's bolt; None without ``execute_timeout_secs``.

        If the limit is longer than the message timeout, that timeout is restarted after each third
        of it.
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
        """Return the longest duration of a call of a task's bolt; None: no limit."""
        limit = self.call_limit(task)
        return self.longest_call if limit is None else timedelta(seconds=limit.ends_s)


def ticks_of(topology: Topology) -> dict[str, float]:
    """Return the seconds between two ticks of each bolt that has ticks."""
    bolts = [
        bolt
        for bolt, spec in topology.bolts.items()
        if not is_system(bolt) and not isinstance(spec.bolt, WindowedBolt)
    ]
    periods = {bolt: topology.config_of(bolt).tick_tuple_freq_secs for bolt in bolts}
    return {bolt: period_s for bolt, period_s in periods.items() if period_s is not None}

"""Servers and settings that the runs of one topology share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tiercel.acker.inbox.contract import Inboxes
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.control.contract import Control
from tiercel.workers.control.lease import Lease
from tiercel.workers.heartbeat import Heartbeat


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Servers and settings that the runs of one topology share."""

    topology: Topology
    lease: Lease
    control: Control
    inboxes: Inboxes
    # Makes the run with this number, for so many slots, of ``topology`` with its numbers of tasks.
    make: Callable[[int, int, Topology], Run]
    # Makes everything the run's, and returns how many messages were released. May be repeated.
    #
    # Raises StaleAttemptError if a later run has begun.
    enter: Callable[[Run], int]
    # Lets the memory of bolts that are to be once grow older; see ``StateStore.age``.
    age: Callable[[], None] = lambda: None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)

"""Context of a driver beside its topology and servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiercel.workers.heartbeat import Heartbeat


@dataclass(frozen=True, kw_only=True)
class DriverAround:
    """Origin of the topology's code, and the watchers of the driver."""

    # On a cluster it is sent to the executors, with what lies beside it. None: it is there.
    module: str | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)

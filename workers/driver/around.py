"""Context of a driver beside its topology and servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiercel.spark_jobs.logs.worker_logs import WorkerLogs
from tiercel.spark_jobs.spark.settings import is_local
from tiercel.workers.config import Settings
from tiercel.workers.heartbeat import Heartbeat


@dataclass(frozen=True, kw_only=True)
class DriverAround:
    """Origin of the topology's code, and the watchers of the driver."""

    # On a cluster it is sent to the executors, with what lies beside it. None: it is there.
    module: str | None = None
    # Of Spark's Python workers. None: as it is there.
    logs: WorkerLogs | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


def worker_logs(settings: Settings, mark: str) -> WorkerLogs:
    """Return how Spark's Python workers log; ``mark`` is of the records that reach our stderr."""
    return WorkerLogs(
        level=settings.log_level,
        form=settings.log,
        mark=mark if is_local(settings.master) else None,
    )

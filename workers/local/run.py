"""A whole topology on one machine: a process per spout task, and the driver."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Self

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.contract import Metrics, total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.config import Settings, python_path
from tiercel.workers.processes import Child, Supervisor

_NAMES = ("emitted", "acked", "failed", "timeout", "released", "rejected", "no_identity")

log = logging.getLogger(__name__)
_PROGRESS_S = 10.0
# Time for a worker to give messages back and close connections, after its own grace time.
_EXTRA_GRACE = timedelta(seconds=5)


class LocalRun:
    """The processes of one topology, which end with the ``with`` block, or with this process."""

    def __init__(self, name: str, topology: Topology, settings: Settings) -> None:
        """``name`` is a name for ``load_topology``; ``settings`` name both servers."""
        self._name = name
        self._topology = topology
        self._settings = settings
        self._supervisor = Supervisor(
            timedelta(seconds=topology.config.shutdown_grace_secs) + _EXTRA_GRACE
        )

    def start(self) -> None:
        """Start the driver first, because it takes longest, then the spout workers."""
        self._start("driver", "driver", self._name)
        for component, spec in self._topology.spouts.items():
            for index in range(spec.parallelism):
                self._start(
                    spout_name(component, index),
                    "spout",
                    self._name,
                    component,
                    "--task-index",
                    str(index),
                )

    def spout(self, component: str, index: int) -> Child:
        """The process of a spout task."""
        return self._supervisor.child(spout_name(component, index))

    @property
    def driver(self) -> Child:
        return self._supervisor.child("driver")

    @property
    def refused(self) -> list[str]:
        """Names of the processes that ended because an operator must act."""
        return [child.name for child in self._supervisor.refused]

    def wait(self, stopped: threading.Event) -> None:
        """Wait until ``stopped`` is set, the topology was killed, or a process has refused to work.

        Logs the progress every ten seconds.
        """
        spouts = self._topology.spouts
        progress = Progress(
            RedisMetrics(self._settings.redis_urls[0], self._topology.name),
            spouts,
            time.monotonic(),
        )
        look_at = time.monotonic() + _PROGRESS_S
        # Only the driver's exit shows that the topology was killed: a spout worker may die at that
        # moment, and be restarted to wait in vain.
        while not self.refused and self.driver.exit_code != 0 and not stopped.wait(0.5):
            if time.monotonic() >= look_at:
                look_at += _PROGRESS_S
                progress.look(time.monotonic())

    def stop(self) -> None:
        """Send SIGTERM to all; messages in flight are finished or given back."""
        self._supervisor.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, child_name: str, command: str, *arguments: str) -> None:
        environment = {**self._settings.as_environment(), **python_path(Path.cwd())}
        self._supervisor.start(
            Child(child_name, [sys.executable, "-m", "tiercel", command, *arguments], environment)
        )


def spout_name(component: str, index: int) -> str:
    """Return the name of a spout worker in logs."""
    return f"spout-{component}-{index}"


class Progress:
    """Logs progress from the spouts' counters. Best effort: while Redis is away it logs nothing."""

    def __init__(self, metrics: Metrics, spouts: Iterable[str], now: float) -> None:
        """``now`` is in monotonic seconds, as in ``look``."""
        self._metrics, self._spouts = metrics, tuple(spouts)
        self._before: Counter[str] = Counter()
        self._looked_at = now

    def look(self, now: float) -> None:
        """Log the progress since the last call, if there was any."""
        try:
            totals = self._metrics.totals()
        except AckerError:
            return
        counts: Counter[str] = Counter()
        for spout in self._spouts:
            counts.update(total_of(totals, spout))
        line = describe(self._before, counts, now - self._looked_at)
        self._before = counts
        self._looked_at = now
        if line is not None:
            log.info("%s", line, extra={"event": "progress"})


def describe(before: Counter[str], now: Counter[str], seconds: float) -> str | None:
    """Return ``1,234 acked (123 per second), 5 failed, 7 released, 100 in flight``; None without
    progress.

    Tuples in flight were emitted and have no outcome yet; this includes tuples of a killed worker.
    """
    done = now["acked"] - before["acked"]
    if all(now[name] == before[name] for name in _NAMES):
        return None
    in_flight = now["emitted"] - now["acked"] - now["failed"] - now["released"]
    parts = [
        f"{now['acked']:,} acked ({done / max(seconds, 0.001):,.0f} per second)",
        f"{now['failed']:,} failed",
    ]
    shown = {"timeout": "timeout", "released": "released", "rejected": "rejected"}
    shown["no_identity"] = "without an identity"
    parts += [f"{now[name]:,} {words}" for name, words in shown.items() if now[name]]
    return ", ".join([*parts, f"{max(in_flight, 0):,} in flight"])

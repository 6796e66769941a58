"""Looks at all topologies every two seconds, watched or not.

Remembers their depths, throughput and latencies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tiercel.acker.metrics.windows import Window
from tiercel.workers.monitoring.history import History, Sample
from tiercel.workers.monitoring.watcher import Look, Watcher

log = logging.getLogger(__name__)

LOOK_S = 2.0


class Station:
    """One thread that looks, for any number of pages. Thread-safe."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._stopped = threading.Event()
        self._remembering = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="station", daemon=True)
        self._first: str | None = None
        self._looks: dict[tuple[str | None, Window], tuple[float, Look]] = {}
        self._histories: dict[str, History] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop looking; a look that runs is left to its timeouts."""
        self._stopped.set()

    def look(self, name: str | None, window: Window) -> Look:
        """Return a look that is at most two seconds old.

        Other windows than ten minutes are looked at on request.
        """
        seen_at, look = self._looks.get((name, window), (float("-inf"), None))
        if look is not None and (
            window is Window.TEN_MINUTES or time.monotonic() - seen_at < LOOK_S
        ):
            return look
        return self._see(name, window)

    def samples(self, name: str, *, long: bool = True) -> Sequence[Sample]:
        """Of the last three hours, or ten minutes, or since the monitor began; oldest first."""
        with self._remembering:
            history = self._histories.get(name)
            if history is None:
                return ()
            return history.samples() if long else history.fine()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._round()
            except Exception:
                # Whatever it was, the page must go on and try again.
                log.exception(
                    "a look at the servers failed", extra={"event": "monitor_look_failed"}
                )
            self._stopped.wait(LOOK_S)

    def _round(self) -> None:
        first = self._see(None, Window.TEN_MINUTES)
        if not first.topologies:
            return
        for name in first.topologies:
            shown = first.overview is not None and first.overview.name == name
            look = first if shown else self._see(name, Window.TEN_MINUTES)
            self._looks[name, Window.TEN_MINUTES] = time.monotonic(), look
            with self._remembering:
                self._histories.setdefault(name, History(timedelta(seconds=LOOK_S))).add(
                    sample_of(look)
                )

    def _see(self, name: str | None, window: Window) -> Look:
        look = self._watcher.look(name, window)
        # Of topologies that there are: any client may ask for any name, and that must not
        # fill the memory.
        if name is None or name in look.topologies:
            self._looks[name, window] = time.monotonic(), look
        return look


def sample_of(look: Look) -> Sample:
    """The lines of the charts at this moment."""
    seen = look.overview
    if seen is None:
        return Sample(at=datetime.now(UTC))
    queues: dict[str, float | None] = {}
    away = look.rabbitmq_problem is not None
    for queue in seen.queues:
        queues[f"{queue.name} ready"] = None if away else queue.ready
        queues[f"{queue.name} unacked"] = None if away else queue.unacked
        queues[f"{queue.name} dead"] = None if away else queue.dead_lettered
    away = look.redis_problem is not None
    still = away or not seen.flow.known
    return Sample(
        at=datetime.now(UTC),
        queues=queues,
        inside={
            "pending trees": None if away else seen.own.pending,
            "waiting tuples": None if away else seen.own.waiting,
        },
        throughput={
            "acked": None if still else seen.flow.acked_a_second,
            "failed": None if still else seen.flow.failed_a_second,
        },
        latency={
            "p50": None if still else seen.flow.p50_ms,
            "p99": None if still else seen.flow.p99_ms,
        },
    )

"""Reads all topologies every two seconds, even if no page is open. Remembers depths, throughput and
latencies: every reading for ten minutes, and steps of half a minute for three hours.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tiercel.acker.metrics.contract import Window
from tiercel.queues import outage
from tiercel.workers.monitoring.watcher import Look, Watcher

log = logging.getLogger(__name__)
LOOK_S = 2.0
# A reading of many topologies, or of servers that time out, takes some seconds.
_STALE_S = 60.0
FINE = timedelta(minutes=10)
KEPT = timedelta(hours=3)
STEP = timedelta(seconds=30)
# Keys are names of chart lines. None: a server did not answer, or nothing was measured.
Figures = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The figures of one topology at one moment."""

    at: datetime
    # Depths of the broker's queues.
    queues: Figures = field(default_factory=dict)
    # Tuples and trees in flight in the topology.
    inside: Figures = field(default_factory=dict)
    # Per second.
    throughput: Figures = field(default_factory=dict)
    # In milliseconds.
    latency: Figures = field(default_factory=dict)


class Sampler:
    """Reads on one thread, for any number of pages. Thread-safe."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._stopped = threading.Event()
        self._remembering = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._first: str | None = None
        self._looks: dict[tuple[str | None, Window], tuple[float, Look]] = {}
        self._histories: dict[str, History] = {}
        self._rabbitmq = outage.Outage("RabbitMQ")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, without waiting for a reading that is under way."""
        self._stopped.set()

    def look(self, name: str | None, window: Window) -> Look:
        """Return a reading that is at most two seconds old.

        Windows other than ten minutes are read on request.
        """
        seen_at, look = self._looks.get((name, window), (float("-inf"), None))
        if look is not None and (
            window is Window.TEN_MINUTES or time.monotonic() - seen_at < LOOK_S
        ):
            return look
        return self._see(name, window)

    def all(self) -> tuple[dict[str, Look], list[str]]:
        """Return the last reading of each known topology, and the problems of the servers."""
        window = Window.TEN_MINUTES
        first = self.look(None, window)
        looks = {name: self.look(name, window) for name in first.topologies}
        problems = [line for look in looks.values() or [first] for line in look.problems.lines]
        return looks, list(dict.fromkeys(problems))

    def unready(self) -> str | None:
        """Return which server did not answer the last reading; None if all did."""
        seen_at, look = self._looks.get((None, Window.TEN_MINUTES), (0.0, None))
        if look is None:
            return "the servers were not read yet"
        age_s = time.monotonic() - seen_at
        if age_s > _STALE_S:
            return f"the last reading is {age_s:.0f} s old"
        if look.problems.redis is not None and not look.problems.unreadable:
            return "Redis does not answer"
        return None if look.problems.rabbitmq is None else "RabbitMQ does not answer"

    def samples(self, name: str, *, long: bool = True) -> Sequence[Sample]:
        """Return the samples of three hours, oldest first; if not ``long``, of ten minutes."""
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
                # The thread must survive any error, and try again.
                log.exception(
                    "could not read the servers, will retry", extra={"event": "monitor_look_failed"}
                )
            self._stopped.wait(LOOK_S)

    def _round(self) -> None:
        first = self._see(None, Window.TEN_MINUTES)
        if not first.problems.unreadable:
            _report(outage.REDIS, first.problems.redis)
        _report(self._rabbitmq, first.problems.rabbitmq)
        self._forget_others(first.topologies)
        for name in first.topologies:
            shown = first.overview is not None and first.overview.name == name
            look = first if shown else self._see(name, Window.TEN_MINUTES)
            self._looks[name, Window.TEN_MINUTES] = time.monotonic(), look
            with self._remembering:
                self._histories.setdefault(name, History(timedelta(seconds=LOOK_S))).add(
                    sample_of(look)
                )

    def _forget_others(self, known: Sequence[str]) -> None:
        """Forget topologies that an operator has forgotten: open pages ask for them again."""
        for name, window in list(self._looks):
            if name is not None and name not in known:
                self._looks.pop((name, window), None)
        with self._remembering:
            for name in self._histories.keys() - set(known):
                del self._histories[name]

    def _see(self, name: str | None, window: Window) -> Look:
        look = self._watcher.look(name, window)
        # Known topologies only: clients may ask for any name, and must not fill the memory.
        if name is None or name in look.topologies:
            self._looks[name, window] = time.monotonic(), look
        return look


def _report(server: outage.Outage, problem: str | None) -> None:
    if problem:
        server.begins("sampler", problem)
    else:
        server.ends("sampler")


def sample_of(look: Look) -> Sample:
    """Return the points that a reading adds to the charts."""
    seen = look.overview
    if seen is None:
        return Sample(at=datetime.now(UTC))
    queues: dict[str, float | None] = {}
    for queue in seen.queues:
        queues[f"{queue.name} ready"] = queue.ready
        queues[f"{queue.name} unacked"] = queue.unacked
        queues[f"{queue.name} dead"] = queue.dead_lettered
    inside = {"pending trees": seen.own.pending, "waiting tuples": seen.own.waiting}
    flow = seen.flow
    redis = look.problems.redis is None
    moving = redis and flow.known
    return Sample(
        at=datetime.now(UTC),
        queues=_if(look.problems.rabbitmq is None, queues),
        inside=_if(redis, inside),
        throughput=_if(moving, {"acked": flow.acked_a_second, "failed": flow.failed_a_second}),
        latency=_if(moving, {"p50": flow.p50_ms, "p99": flow.p99_ms}),
    )


def _if(known: bool, figures: Figures) -> Figures:
    return figures if known else dict.fromkeys(figures)


class History:
    """The samples of one topology, in bounded memory."""

    def __init__(self, look: timedelta) -> None:
        """``look`` is the time between two samples."""
        self._fine: deque[Sample] = deque(maxlen=FINE // look)
        self._steps: deque[Sample] = deque(maxlen=KEPT // STEP)

    def add(self, sample: Sample) -> None:
        """Add a sample, which must be newer than all before."""
        self._fine.append(sample)
        last = self._steps[-1] if self._steps else None
        if last is None or sample.at >= last.at + STEP:
            self._steps.append(sample)
        else:
            self._steps[-1] = Sample(
                at=last.at,
                queues=highest((last.queues, sample.queues)),
                inside=highest((last.inside, sample.inside)),
                throughput=highest((last.throughput, sample.throughput)),
                latency=highest((last.latency, sample.latency)),
            )

    def samples(self) -> Sequence[Sample]:
        """Return all samples, oldest first. Steps keep their highest figures: no peak is lost."""
        fine = self.fine()
        return [step for step in list(self._steps) if not fine or step.at < fine[0].at] + fine

    def fine(self) -> list[Sample]:
        """Return the samples of the last ten minutes, oldest first."""
        return list(self._fine)


def highest(several: Iterable[Figures]) -> Figures:
    """Return the highest value of each figure; None if it is never known."""
    found: dict[str, float | None] = {}
    for figures in several:
        for name, value in figures.items():
            known = [each for each in (found.get(name), value) if each is not None]
            found[name] = max(known, default=None)
    return found

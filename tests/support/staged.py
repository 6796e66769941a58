"""A topology's traces in Redis without its processes: they appear present and counting as long as
the stage stands.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.support.inboxes import parcel
from tests.support.inboxes import put as append
from tiercel import Bolt, QueueSpout, TopologyBuilder
from tiercel.acker.inbox.contract import Holdings, OpenWindows
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.layout import silent_key
from tiercel.acker.metrics.contract import (
    ErrorReport,
    TraceReport,
    bucket_of,
    edge_counter,
    trace_counter,
)
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.scripts import RedisServers
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.presence import Holder, Lease, Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry

RUN = "run"
_ROUND_S = 0.5
_WATERMARK_US = 1_700_000_000_000_000
_STARTED = datetime.now(UTC) - timedelta(hours=3, minutes=4)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rates of one bolt, per second."""

    source: str
    tasks: int = 2
    executed: int = 20
    failed: int = 0
    execute_ms: float = 1.0
    waiting: int = 0
    # Tuples that windows of each task hold.
    held: int = 0


@dataclass(frozen=True, kw_only=True)
class Play:
    """A topology with one spout, ``orders``, which reads the queue of the topology's name."""

    name: str
    parts: dict[str, Part] = field(default_factory=dict)
    acked: int = 18
    latency_ms: float = 900.0
    # For how long the spout could send nothing when the stage was set up; 0: it can.
    silent_s: float = 0.0

    def topology(self):
        builder = TopologyBuilder(self.name)
        builder.set_spout("orders", QueueSpout(self.name))
        for name, part in self.parts.items():
            bolt = type("Staged", (Bolt,), {"output_fields": "n long"})()
            builder.set_bolt(name, bolt, part.tasks).shuffle_grouping(part.source)
        return builder.build()


def place(pid):
    return Whereabouts(host=f"node-{pid % 3}", pid=4000 + pid, since=_STARTED)


class Stage:
    """One play on a Redis server."""

    def __init__(self, redis_url, play, closed):
        self._play = play
        self._topology = play.topology()
        with closing(Registry(redis_url)) as registry:
            registry.announce(self._topology)
        self._metrics = closed.enter_context(closing(RedisMetrics(redis_url, play.name)))
        presences = closed.enter_context(closing(RedisPresences(redis_url, play.name)))
        self._lease = Lease(presences)
        self._seats = SpoutSeats(presences, place(1))
        self._inboxes = closed.enter_context(
            closing(RedisInboxes(RedisServers((redis_url,)), play.name))
        )
        self._control = closed.enter_context(closing(RedisControl(redis_url, play.name)))
        if play.silent_s:
            since_ms = int(1_000 * (time.time() - play.silent_s))
            with closing(connect(redis_url)) as client:
                client.set(silent_key(play.name, "orders"), since_ms, px=5_000)
        self._tasks = {name: list(self._topology.task_ids(name)) for name in play.parts}
        every = [task for tasks in self._tasks.values() for task in tasks]
        self._inboxes.adopt(RUN, every)
        for number, (name, part) in enumerate(play.parts.items(), start=1):
            if part.waiting:
                task = self._tasks[name][0]
                append(
                    self._inboxes,
                    number,
                    parcel(b"chunk", target=task, tuples=[part.waiting]),
                    run=RUN,
                )
        self._rounds = 0

    def act(self):
        """Do the processes' work of half a second."""
        self._rounds += 1
        self._lease.take(Holder(driver="d", run=RUN, whereabouts=place(0)))
        pending = Presence(active=True, pending=250, oldest_s=13.0)
        self._seats.report("worker", 1, pending, by_force=True)
        if self._play.silent_s:
            self._control.note_silent("orders")
        counts = {("orders", 1): self._spout_counts()}
        for name, part in self._play.parts.items():
            tasks = self._tasks[name]
            at = place(2 + tasks[0] % 4).packed()
            windows = OpenWindows(number=1, tuples=part.held, watermark_us=_WATERMARK_US)
            held = dict.fromkeys(tasks, Holdings(windows=windows)) if part.held else {}
            self._inboxes.beat(RUN, dict.fromkeys(tasks, 1), {}, at, held)
            counts |= {(name, task): self._bolt_counts(part) for task in tasks}
            if part.failed and self._rounds % 4 == 0:
                self._raise(name, tasks[0])
        self._metrics.add_all(counts)

    def _spout_counts(self):
        acked = self._play.acked
        spread = defaultdict(int)
        for at in range(acked):
            latency_ms = self._play.latency_ms * (0.6 + at / acked + 0.1 * (self._rounds % 7))
            spread[bucket_of(latency_ms)] += 1
            spread["complete_us"] += round(latency_ms * 1000)
        return {"acked": acked, "emitted": acked, "transferred": acked, **spread}

    def _bolt_counts(self, part):
        executed = max(1, part.executed // part.tasks // 2)
        return {
            "executed": executed,
            "acked": executed,
            "emitted": executed,
            "transferred": executed,
            "failed": part.failed,
            "execute_ns": round(executed * part.execute_ms * 1e6),
            "process_ns": round(executed * part.execute_ms * 1.2e6),
            "steps": 2,
            "step_ns": round(executed * part.execute_ms * 1.1e6),
            edge_counter(part.source, "default"): executed,
        }

    def _raise(self, name, task):
        now = datetime.now(UTC)
        reason = f"ValueError: order {2000 + self._rounds}: amount None (orders.py:12)"
        self._metrics.report(
            [
                ErrorReport(at=now, component=name, task=task, message=reason),
                ErrorReport(
                    at=now, component="orders", task=1, message=f"{name}[{task}]: {reason}"
                ),
            ]
        )
        self._metrics.trace(
            [
                TraceReport(
                    at=now,
                    component=name,
                    task=task,
                    kind="ValueError",
                    place="orders.py:12",
                    reason=reason,
                    text="Traceback: orders.py, line 12",
                )
            ]
        )
        self._metrics.add(name, task, {trace_counter("ValueError", "orders.py:12"): 4})


@contextmanager
def staged(redis_url, play):
    """Run the play within the block."""
    with ExitStack() as closed:
        stage = Stage(redis_url, play, closed)
        stage.act()
        ended = threading.Event()

        def act():
            while not ended.wait(_ROUND_S):
                stage.act()

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        try:
            yield play
        finally:
            ended.set()
            thread.join()


def wide(name, bolts=49):
    """A play of many bolts, eight in parallel."""
    parts = {}
    for at in range(bolts):
        source = "orders" if at < 8 else f"bolt-{at - 8}"
        busy = {5: 90.0, 13: 60.0}.get(at, 2.0)
        parts[f"bolt-{at}"] = Part(source=source, execute_ms=busy, failed=int(at == 21))
    return Play(name=name, parts=parts)


def orders(name):
    """A play whose third component is the bottleneck, and whose second one fails."""
    return Play(
        name=name,
        parts={
            "validate": Part(source="orders", executed=40, failed=1),
            "enrich": Part(source="validate", tasks=8, executed=40, execute_ms=240.0, waiting=1005),
            "sum": Part(source="enrich"),
            "notify": Part(source="sum", tasks=1),
        },
    )

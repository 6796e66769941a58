"""Cost of a whole step of one tuple on Redis, from one inbox to the next or the end of the tree."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import redis

from bench.server import server_seconds
from tiercel import (
    BasicBolt,
    BasicCollector,
    Config,
    Spout,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    Tuple,
)
from tiercel.acker.effects import perform_all
from tiercel.acker.ids import RootIds
from tiercel.acker.inbox.contract import Sender
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.contract import Tally
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import bolt_tasks, inboxes_of, ledger_spec_of
from tiercel.workers.spout.collector import TaskCollector

_RUN = "run"
_BODY = b"x" * 100
_ASKED = 200
Row = dict[str, float]


class Source(Spout):
    output_fields = "body binary"


class Pass(BasicBolt):
    output_fields = "body binary"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        collector.emit(tup.values)


class Count(StatefulBolt):
    """Counts each body in Redis, and passes the tuple on."""

    output_fields = "body binary"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        self.state.increment(tup["body"])
        collector.emit(tup.values)


class Drop(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        pass


class Took(NamedTuple):
    """Seconds of one step."""

    client: float
    server: float
    clock: float


def chain(first: BasicBolt | None = None) -> Topology:
    """Make a topology of a bolt that passes tuples on and a bolt that ends their trees."""
    # Without chaining: each bolt has steps of its own, which are measured.
    builder = TopologyBuilder(f"bench-{secrets.token_hex(4)}", Config(chaining=False))
    builder.set_spout("spout", Source())
    builder.set_bolt("pass", first or Pass()).fields_grouping("spout", "body")
    builder.set_bolt("drop", Drop()).shuffle_grouping("pass")
    return builder.build()


def steps(url: str, times: int) -> dict[str, Row]:
    """Measure a step by bolt: its milliseconds, and microseconds of CPU of task and server."""
    client = connect(url)
    client.flushdb()
    took = dict(zip(("pass", "drop"), _rounds(client, chain(), url, times), strict=True))
    [took["count"], _] = _rounds(client, chain(Count()), url, times)
    asking_s = sum(_asking(client) for _ in range(_ASKED)) / _ASKED
    client.flushdb()
    client.close()
    return {name: _row(column, asking_s) for name, column in took.items()}


def _rounds(
    client: redis.Redis, topology: Topology, url: str, times: int
) -> list[tuple[Took, ...]]:
    """Return the times of all steps for each bolt of the chain."""
    with closing(Stage(topology, url)) as stage:
        rounds = [stage.one_tuple(client) for _ in range(times + 1)]
    # Skip the first step of each bolt, which creates the bolt and loads the scripts.
    return list(zip(*rounds[1:], strict=True))


class Stage:
    """The spout and the bolt tasks of a chain, run in this thread on one server."""

    def __init__(self, topology: Topology, url: str) -> None:
        spec = ledger_spec_of(topology, (url,))
        tasks = bolt_tasks(topology)
        self._open = ExitStack()
        self._inboxes = self._open.enter_context(closing(open_inboxes(spec)))
        self._ledger = self._open.enter_context(closing(open_ledger(spec)))
        self._inboxes.adopt(_RUN, inboxes_of(topology))
        self._ledger.begin(_RUN)
        around = Around(
            run=_RUN,
            topology=topology,
            inboxes=self._inboxes,
            ledger=self._ledger,
            state=self._open.enter_context(closing(RedisStateStore(spec, run_number=1))),
            counting=Counting(MemoryMetrics()),
            config={},
            key=b"key",
            suspicion=Suspicion(_RUN, None, None),
        )
        self._attempts = [
            self._open.enter_context(closing(attempt_at(around, task, threading.Event())))
            for task in tasks
        ]
        tally = Tally(MemoryMetrics(), "spout", 1)
        self._collector = TaskCollector(topology, "spout", 1, tally, RootIds(timedelta(hours=1)))
        self._number = 0

    def one_tuple(self, client: redis.Redis) -> list[Took]:
        """Emit a tuple and run one step of each task."""
        self._number += 1
        self._collector.emit_all([[_BODY]], [self._number])
        emission = self._collector.take()
        self._ledger.register(1, emission.roots, emission.ack_vals)
        perform_all(
            self._inboxes.append(_RUN, Sender(task=1, attempt=1), self._number, emission.parcels)
        )
        return [_step(client, attempt) for attempt in self._attempts]

    def close(self) -> None:
        """Clean up the bolts and release the connections."""
        self._open.close()


def _step(client: redis.Redis, attempt: Attempt) -> Took:
    """Run one step, which also finishes the step before."""
    server_before = server_seconds(client)
    client_before = time.process_time()
    began = time.perf_counter()
    if not attempt.turn():
        raise RuntimeError(f"there was no tuple for task {attempt.task}")
    clock = time.perf_counter() - began
    used = time.process_time() - client_before
    return Took(client=used, server=server_seconds(client) - server_before, clock=clock)


def _asking(client: redis.Redis) -> float:
    """Return the CPU time that the server takes to report its CPU time."""
    before = server_seconds(client)
    return server_seconds(client) - before


def _row(took: Sequence[Took], asking_s: float) -> Row:
    server_s = sum(one.server for one in took) / len(took) - asking_s
    return {
        **percentiles([one.clock for one in took]),
        "client_us": 1e6 * sum(one.client for one in took) / len(took),
        "server_us": 1e6 * max(0.0, server_s),
    }


def percentiles(seconds: Sequence[float]) -> Row:
    """Return p50 and p99 in milliseconds."""
    p50, p99 = 1000 * np.percentile(seconds, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99)}

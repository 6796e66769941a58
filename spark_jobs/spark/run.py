"""The object that travels to the Spark tasks, with everything that they need to run bolt tasks.

Does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

from tiercel.acker.inbox.contract import Inboxes, StaleAttemptError
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.layout import LedgerSpec, paused_key, seat_key, silent_key, spout_seat
from tiercel.acker.limits import LimitSpec, Rate, RedisLimits
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect_topology
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.logs.relay import WorkerLogs
from tiercel.spark_jobs.process.host import Host
from tiercel.spark_jobs.process.interpreter import freeze_startup_objects, take_turns_often
from tiercel.spark_jobs.running.around import Around, ticks_of
from tiercel.spark_jobs.running.copy import new_key
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook
from tiercel.spark_jobs.topology.bolt_settings import rates_of
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.tracing import process as tracing

# The spouts emit again what an earlier run has left behind within seconds.
STANDSTILL_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one topology; pickled into the Spark job. Its addresses may have passwords."""

    id: str
    topology: Topology
    # The bolt tasks of each Spark task.
    hosts: tuple[tuple[int, ...], ...]
    ledger: LedgerSpec
    # Grows from run to run: a state refuses writes of earlier runs.
    run_number: int = 0
    # For bolts that publish.
    amqp_url: str | None = field(default=None, repr=False)
    # Signs the pickles that go into Redis.
    key: bytes = field(default_factory=new_key, repr=False)

    standstill_s: float = STANDSTILL_S
    # Logging of the processes of bolt tasks; None: unchanged.
    logs: WorkerLogs | None = None

    # The variables OTEL_* of the driver if they ask for traces; they may have passwords.
    otel: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open_inboxes(self) -> Inboxes:
        """Open the inboxes, with their own connections."""
        return open_inboxes(self.ledger)

    @contextmanager
    def opened(self) -> Iterator[Around]:
        """Open everything that bolt tasks share in this process."""
        name = self.topology.name
        url = self.ledger.urls[0]
        with ExitStack() as stack:
            client = stack.enter_context(closing(connect_topology(url, name)))
            tracked = self.topology.config.ackers > 0
            ledger = stack.enter_context(closing(open_ledger(self.ledger))) if tracked else None
            book = stack.enter_context(closing(RedisCaseBook(connect_topology(url, name), name)))
            metrics = stack.enter_context(closing(RedisMetrics(url, name)))
            yield Around(
                run=self.id,
                topology=self.topology,
                inboxes=stack.enter_context(closing(self.open_inboxes())),
                ledger=ledger,
                state=stack.enter_context(closing(RedisStateStore(self.ledger, self.run_number))),
                counting=Counting(metrics),
                config={
                    **self.topology.config.as_mapping(),
                    "redis_url": url,
                    "amqp_url": self.amqp_url,
                },
                key=self.key,
                suspicion=Suspicion(self.id, book, ledger),
                hosts=self.hosts,
                limits={
                    component: stack.enter_context(
                        closing(RedisLimits(self._limit(component, rate)))
                    )
                    for component, rate in rates_of(self.topology).items()
                },
                ticks=ticks_of(self.topology),
                read_paused=partial(_paused, client, self.topology),
                standstill_s=self.standstill_s,
                tracing=tracing.start(self.otel, name),
            )

    def _limit(self, component: str, rate: Rate) -> LimitSpec:
        ledger = self.ledger
        return LimitSpec(
            topology=self.topology.name,
            component=component,
            urls=ledger.urls,
            shards=ledger.shards,
            rate=rate,
        )

    def host(self, number: int) -> None:
        """Run the bolt tasks of one Spark task until the run is over."""
        if self.logs is not None:
            self.logs.set_up()
        with self.opened() as around:
            freeze_startup_objects()
            take_turns_often()
            try:
                Host(around, self.hosts[number]).run()
            except StaleAttemptError:
                return
            finally:
                tracing.flush()


def _paused(client: Any, topology: Topology) -> frozenset[str]:
    """Return the components that send nothing: paused bolts, and spouts that are silent or have no
    worker.
    """
    name, spouts = topology.name, list(topology.spouts)
    tasks = [task for spout in spouts for task in topology.task_ids(spout)]
    with (
        translated("look which bolts are paused", client),
        client.pipeline(transaction=False) as pipeline,
    ):
        pipeline.hkeys(paused_key(name))
        pipeline.mget([silent_key(name, spout) for spout in spouts])
        pipeline.mget([seat_key(name, spout_seat(task)) for task in tasks])
        paused, silent, seats = pipeline.execute()
    at_work = {topology.component_of(task) for task in compress(tasks, seats)}
    found = {bolt.decode() for bolt in paused}.union(set(spouts) - at_work)
    return frozenset(found.union(compress(spouts, [value is not None for value in silent])))

"""The driver: starts Spark, and keeps one run of a topology going on it until it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress

from tiercel.acker.connection.client import check_eviction, connect_topology
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.bolts.queue_sink import QueueSink, no_address
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.errors import StaleTurnError, TopologyError
from tiercel.spark_jobs.spark.executors import Readiness
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run, ledger_spec_of
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.spark.stores import open_inboxes
from tiercel.spark_jobs.state.redis_store import RedisStateStore, check_layout
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.placement import bolt_tasks, check_has_bolts, spread
from tiercel.workers.control.contract import State
from tiercel.workers.control.lease import Lease
from tiercel.workers.control.redis_control import RedisControl
from tiercel.workers.control.redis_presence import RedisPresences
from tiercel.workers.control.registry import Registry
from tiercel.workers.driver.around import DriverAround
from tiercel.workers.driver.entering import enter
from tiercel.workers.driver.ground import Ground
from tiercel.workers.driver.runs import Runs
from tiercel.workers.driver.starting import start_unless

log = logging.getLogger(__name__)


class Driver:
    """Keeps one run going until ``stop``."""

    def __init__(
        self,
        topology: Topology,
        redis_urls: tuple[str, ...],
        master: str,
        amqp_url: str | None = None,
        *,
        around: DriverAround | None = None,
    ) -> None:
        """``master`` in Spark's syntax: ``local[2]``, ``spark://host:7077``.

        ``amqp_url`` is for bolts that publish. Raises TopologyError if there is such a
        bolt and no address.
        """
        check_has_bolts(topology)
        sinks = sinks_of(topology)
        if sinks and not amqp_url:
            raise TopologyError(no_address(sinks[0]))
        self._topology = topology
        self._redis_url = redis_urls[0]
        self._spec = ledger_spec_of(topology, redis_urls)
        self._master = master
        self._amqp_url = amqp_url
        self._around = around or DriverAround()
        self._control = RedisControl(self._redis_url, topology.name)
        self._ground = Ground(
            topology=topology,
            lease=Lease(RedisPresences(self._redis_url, topology.name)),
            control=self._control,
            inboxes=open_inboxes(self._spec),
            make=self._make,
            enter=self._enter,
            age=self._age,
            heartbeat=self._around.heartbeat,
        )
        self._runs = Runs(self._ground)
        # Connects on its first call. It writes no state: its run may be any.
        self._states = RedisStateStore(self._spec, run_number=0)

    def stop(self) -> None:
        """Thread-safe and safe in a signal handler: begin to end."""
        self._runs.stop()

    def run(self) -> None:
        """Work until ``stop``. Raises what an operator must act on."""
        with ExitStack() as stack:
            for part in (
                self._ground.inboxes, self._ground.lease, self._control, self._states, self._runs,
            ):  # fmt: skip
                stack.callback(part.close)
            if self._is_killed():
                log.info(
                    "tiercel activate %s lets it start again",
                    self._topology.name,
                    extra={"event": "start_refused"},
                )
                return
            if not self._runs.wait_for_turn():
                return
            # Release what a killed driver left behind before Spark starts, which takes seconds.
            self._runs.begin(slots=1)
            unit = start_unless(self._runs.stopped, self._start_spark)
            if unit is None:
                return
            with unit as spark:
                spark.ship(self._around.module, self._master)
                try:
                    self._runs.go(_SparkHosts(spark))
                except Exception:
                    spark.check_alive()
                    raise
                finally:
                    # Python workers that are cut off print traces that mean nothing.
                    spark.silence()

    def _start_spark(self) -> SparkUnit:
        return SparkUnit(self._topology.name, self._master, self._topology.config.spark_options)

    def _is_killed(self) -> bool:
        with suppress(RedisUnavailableError):
            return self._control.state() is State.KILLED
        return False

    def _make(self, number: int, slots: int, topology: Topology) -> Run:
        return Run(
            id=str(number),
            topology=topology,
            hosts=spread(bolt_tasks(topology), slots),
            ledger=self._spec,
            run_number=number,
            amqp_url=self._amqp_url,
            logs=self._around.logs,
        )

    def _age(self) -> None:
        for name, spec in self._topology.bolts.items():
            if isinstance(spec.bolt, StatefulBolt) and spec.bolt.once:
                self._states.age(name, int(spec.bolt.once_retention.total_seconds()))

    def _enter(self, run: Run) -> int:
        topology = run.topology
        # Its tasks would find it too, after everything was released, again and again.
        stateful = [
            name for name, spec in topology.bolts.items() if isinstance(spec.bolt, StatefulBolt)
        ]
        spec = run.ledger
        check_layout(spec, stateful)
        check_eviction(spec.urls, spec.topology, spec.shards, stateful)
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(open_ledger(run.ledger)))
            client = connect_topology(self._redis_url, topology.name)
            book = stack.enter_context(closing(RedisCaseBook(client, topology.name)))
            released = enter(run.id, topology, self._ground.inboxes, ledger, book)
            _take_back_half_done(run, stateful)
            stack.enter_context(closing(Registry(self._redis_url))).announce(topology)
            return released


def _take_back_half_done(run: Run, components: Sequence[str]) -> None:
    # At its end the run's own tasks are at their turns, and a later run takes back what they leave.
    with closing(RedisStateStore(run.ledger, run.run_number)) as store, suppress(StaleTurnError):
        for component in components:
            store.begin_run(component)


class _SparkHosts:
    """``Hosts`` on one Spark application."""

    def __init__(self, spark: SparkUnit) -> None:
        self._spark = spark

    @property
    def free(self) -> int:
        return self._spark.free

    def check_alive(self) -> None:
        self._spark.check_alive()

    def ready(self, wanted: int) -> Readiness:
        return self._spark.ready(wanted)

    def start(self, run: Run) -> LongTasks:
        tasks = LongTasks(self._spark.context, run)
        tasks.start()
        return tasks

    def silenced(self) -> AbstractContextManager[None]:
        return self._spark.silenced()


def sinks_of(topology: Topology) -> list[str]:
    """Return the components that publish to the topology's RabbitMQ: those without an ``amqp_url``
    among their own settings.
    """
    return [
        component
        for component, spec in topology.bolts.items()
        if isinstance(spec.bolt, QueueSink)
        and not topology.config_of(component).extra.get("amqp_url")
    ]

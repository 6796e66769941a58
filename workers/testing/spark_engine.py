"""The engine of the real thing: inboxes and ledger in Redis, the bolts in
long-lived Spark tasks.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from tiercel.acker.connection.client import connect_topology
from tiercel.acker.connection.errors import translated
from tiercel.acker.layout import topology_prefix
from tiercel.acker.metrics.redis_counters import RedisMetrics
from tiercel.acker.metrics.traces import KnownError
from tiercel.acker.redis_ledger import open_ledger
from tiercel.queues.inbox.records import StaleAttemptError
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.reasons import reason_of
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import ledger_spec_of
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.spark.stores import open_inboxes
from tiercel.spark_jobs.spark.travel import check_travel
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.placement import bolt_tasks, inboxes_of, spread
from tiercel.workers.testing.capture import CAPTURE, CopyingInboxes
from tiercel.workers.testing.errors import LocalClusterError
from tiercel.workers.testing.imports import Imports
from tiercel.workers.testing.shared import shared_redis_url, shared_spark
from tiercel.workers.testing.spark_run import WatchedRun

_LOOK_S = 0.005
_PATIENCE_S = 10.0
# A process tells its counters, and what bolts raised, each second.
_TOLD_S = 1.5
_DELETED_AT_ONCE = 500


class SparkEngine:
    """``Engine`` on this machine.

    A name of its own keeps a cluster's keys apart from those of others on the same Redis.

    The capturing bolt's task works in this process, all others in Spark.
    """

    def __init__(self, topology: Topology, slots: int, redis_url: str | None) -> None:
        """Without a ``redis_url`` all clusters of the process share a private server.

        Raises LocalClusterError.
        """
        redis_url = redis_url or shared_redis_url()
        name = f"local-cluster-{secrets.token_hex(8)}"
        topology = replace(topology, name=name)
        # Time is simulated: what a timeout is to the tuples, it is not to the server.
        spec = replace(ledger_spec_of(topology, (redis_url,)), message_timeout=None)
        self.ledger = open_ledger(spec)
        self.metrics = RedisMetrics(redis_url, name)
        self.state = RedisStateStore(spec, run_number=0)
        tasks = bolt_tasks(topology)
        capture = topology.task_ids(CAPTURE)[0]
        self._run = WatchedRun(
            id=secrets.token_hex(6),
            topology=topology,
            hosts=spread([task for task in tasks if task != capture], slots),
            ledger=spec,
            imports=Imports.of_this_process(),
        )
        self._inbox_ids = inboxes_of(topology)
        self._capture_task = capture
        self._capture: Attempt | None = None
        self.inboxes = CopyingInboxes(open_inboxes(spec), topology, bounded=False)
        self.run_id = self._run.id
        self._client = connect_topology(redis_url, name)
        self._spark: LongTasks | None = None
        self._worked_at = time.monotonic()
        self._open = ExitStack()
        for part in (self.ledger, self.metrics, self.state, self.inboxes, self._client):
            self._open.callback(part.close)

    @property
    def next_at(self) -> None:
        """The bolts sleep in real time."""

    def start(self) -> None:
        """Ask Redis first: Spark takes seconds to start, once per process."""
        with translated("run on Redis"):
            self._client.ping()
        check_travel(self._run.topology)
        self._open.callback(self._wipe)
        self.inboxes.adopt(self.run_id, self._inbox_ids)
        self.ledger.begin(self.run_id)
        around = self._open.enter_context(replace(self._run, topology=self._run.topology).opened())
        self._capture = attempt_at(around, self._capture_task, threading.Event())
        spark = shared_spark()
        try:
            self._spark = LongTasks(spark.context, self._run)
            self._spark.start()
        except Exception as error:
            raise LocalClusterError(
                f"Spark cannot run this topology: {reason_of(error)}"
            ) from error
        self._open.callback(self._finish, spark, self._spark)

    def work(self) -> None:
        """Until all inboxes are empty, in two looks: a tuple is in the next inbox before it
        leaves the one before.
        """
        empty = 0
        while empty < 2:
            if self._spark is None or not self._spark.active:
                fault = self._spark.fault if self._spark else "it has not been started"
                raise LocalClusterError(f"the Spark job ended: {fault}")
            while self._capture is not None and self._capture.turn():
                continue
            waiting = sum(one.tuples for one in self.inboxes.figures(self._inbox_ids).values())
            empty = 0 if waiting else empty + 1
            if waiting:
                time.sleep(_LOOK_S)
        self._worked_at = time.monotonic()

    def tracebacks(self) -> Sequence[KnownError]:
        """Processes tell them about once a second: waits until that was done after the last
        work.
        """
        time.sleep(max(0.0, self._worked_at + _TOLD_S - time.monotonic()))
        return self.metrics.traces()

    def close(self) -> None:
        self._open.close()

    def _finish(self, spark: SparkUnit, tasks: LongTasks) -> None:
        with spark.silenced():
            with suppress(StaleAttemptError):
                self.inboxes.adopt(f"{self._run.id}-ended", self._inbox_ids)
            if not tasks.wait(_PATIENCE_S):
                tasks.cancel()
                tasks.wait(_PATIENCE_S)

    def _wipe(self) -> None:
        """Remove every key of the topology, whatever made it."""
        pattern = topology_prefix(self._run.topology.name).partition("}")[0] + "*"
        with translated("clear up"):
            keys = list(self._client.scan_iter(pattern, count=_DELETED_AT_ONCE))
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                self._client.unlink(*keys[start : start + _DELETED_AT_ONCE])

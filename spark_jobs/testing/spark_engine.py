"""The engine of the real thing: relay and ledger in Redis, the bolts in a Structured Streaming query."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from pyspark import cloudpickle

from acker import RedisMetrics, open_ledger
from queues import Entry, Spout
from spark_jobs.job import ledger_spec_of
from spark_jobs.levels import Plan
from spark_jobs.query import RunningQuery
from spark_jobs.reasons import reason_of
from spark_jobs.session import SparkUnit
from spark_jobs.state import RedisStateStore
from spark_jobs.testing.errors import LocalClusterError
from spark_jobs.testing.imports import Imports
from spark_jobs.testing.seen_store import SeenStore
from spark_jobs.testing.shared import shared_redis_url, shared_spark
from spark_jobs.testing.spark_job import WatchedJob
from spark_jobs.topology import Topology

_LOOK_S = 0.01
_PATIENCE_S = 10.0
_ATTEMPTS = 3
"""On a busy machine Spark may give up on a process of its own that is still starting."""


class SparkEngine:
    """``Engine`` on this machine. A name of its own keeps a cluster's keys apart from those of others on the same Redis."""

    def __init__(self, plan: Plan, redis_url: str | None) -> None:
        """Without a ``redis_url`` all clusters of the process share a private server. Raises LocalClusterError."""
        redis_url = redis_url or shared_redis_url()
        name = f"local-cluster-{secrets.token_hex(8)}"
        plan = replace(plan, topology=replace(plan.topology, name=name))
        # Time is simulated: what a timeout is to the tuples, it is not to the server.
        spec = replace(ledger_spec_of(plan, (redis_url,)), message_timeout=None)
        self.ledger = open_ledger(spec)
        self.metrics = RedisMetrics(redis_url, name)
        self.state = RedisStateStore(spec, epoch=0)
        self._job = WatchedJob(
            run=secrets.token_hex(6), plan=_without_spouts(plan), ledger=spec, imports=Imports.of_this_process()
        )
        self._seen = SeenStore(redis_url, name)
        self._relay = self._job.open_relay()
        self._query: RunningQuery | None = None
        self._open = ExitStack()
        for part in (self.ledger, self.metrics, self.state, self._relay, self._seen):
            self._open.callback(part.close)

    def start(self) -> None:
        """Ask Redis first: Spark takes ten seconds to start, once a process."""
        self._seen.check()
        _check_travel(self._job.plan.topology)
        self._open.callback(self._seen.wipe)
        spark = shared_spark()
        scratch = self._open.enter_context(tempfile.TemporaryDirectory(prefix="tiercel-test-kit-", ignore_cleanup_errors=True))
        self._open.callback(spark.on_each_worker, partial(self._job.clean_up, spark.cores))
        try:
            for attempt in range(_ATTEMPTS):
                query = self._query = spark.start(self._job, f"{scratch}/{attempt}")
                if query.wait_until_ready():
                    break
        except Exception as error:
            raise LocalClusterError(f"Spark cannot run this topology: {reason_of(error)}") from error
        self._open.callback(_finish, spark, query)

    def run(self, entries: Sequence[Entry]) -> list[bytes]:
        """The query trims the relay when the micro-batch is over and it looks for the next one."""
        if self._query is None:
            raise LocalClusterError("the engine has not been started")
        self._relay.append(entries)
        while self._relay.length():
            if not self._query.active:
                raise LocalClusterError(f"the Spark query ended: {self._query.fault()}")
            time.sleep(_LOOK_S)
        return self._seen.take()

    def close(self) -> None:
        self._open.close()


def _check_travel(topology: Topology) -> None:
    """Spark's own message would not say which bolt it is."""
    for component, spec in topology.bolts.items():
        try:
            cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]
        except Exception as error:
            reason = f"bolt {component!r} cannot travel to Spark: {reason_of(error)}"
            raise LocalClusterError(f"{reason}; make what cannot be pickled in prepare, not in __init__") from error


def _finish(spark: SparkUnit, query: RunningQuery) -> None:
    with spark.silenced():
        query.finish(_PATIENCE_S)


def _without_spouts(plan: Plan) -> Plan:
    """The plan for the workers. Spouts stay in the test, and may hold on to anything there."""
    topology = plan.topology
    spouts = {component: replace(spec, spout=Spout()) for component, spec in topology.spouts.items()}
    return replace(plan, topology=replace(topology, spouts=spouts))

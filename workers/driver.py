"""The driver: runs a topology's Spark query, and begins a new run whenever one ends by a fault.

A run never continues another. What the relay still holds when a run begins was perhaps half processed: those roots are
released, so that the broker delivers their messages again at once and not after the timeout.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
import threading
import time

import numpy as np
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tenacity import Retrying, retry_if_exception_type, wait_exponential_jitter

from acker import Ledger, LedgerSpec, LedgerUnavailableError, open_ledger
from queues import Relay
from queues.chunk import decode
from queues.errors import RelayUnavailableError
from spark_jobs.job import Job, ledger_spec_of, open_relay
from spark_jobs.levels import Plan, plan_topology
from spark_jobs.query import start_query
from spark_jobs.session import start_session
from spark_jobs.topology import Topology

log = logging.getLogger(__name__)

_LOOK = 0.2
_LONGEST_PAUSE_S = 10.0
_HEALTHY_S = 30.0
"""A run that lasted this long starts the pauses between runs anew."""


class Driver:
    """Keeps one query running until ``stop``."""

    def __init__(self, topology: Topology, redis_urls: tuple[str, ...], master: str) -> None:
        """``master`` in Spark's syntax: ``local[2]``, ``spark://host:7077``."""
        self._topology, self._redis_urls, self._master = topology, redis_urls, master
        self._stop = threading.Event()

    def stop(self) -> None:
        """Thread-safe and safe in a signal handler: end after the micro-batch that runs."""
        self._stop.set()

    def run(self) -> None:
        """Start Spark and work until ``stop``. Raises SparkUnavailableError if Spark does not start."""
        spark = start_session(self._topology.name, self._master, self._topology.config.spark_options)
        plan = plan_topology(self._topology, max_lanes=spark.sparkContext.defaultParallelism)
        ledger_spec = ledger_spec_of(plan, self._redis_urls)
        try:
            with tempfile.TemporaryDirectory(prefix="tiercel-checkpoints-", ignore_cleanup_errors=True) as scratch:
                self._runs(spark, plan, ledger_spec, scratch)
        finally:
            spark.stop()

    def _runs(self, spark: SparkSession, plan: Plan, ledger_spec: LedgerSpec, scratch: str) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            job = Job(run=secrets.token_hex(6), plan=plan, ledger=ledger_spec)
            self._begin(job)
            if self._stop.is_set():
                return
            query = start_query(spark, job, f"{scratch}/{job.run}")
            log.info(
                "run %s of %s: %d levels on %s", job.run, plan.topology.name, plan.levels, self._master,
                extra={"event": "run_started"},
            )  # fmt: skip
            self._watch(query)
            failures = 0 if time.monotonic() - began > _HEALTHY_S else failures + 1
            if not self._stop.is_set():
                pause = min(_LONGEST_PAUSE_S, 0.25 * 2 ** min(failures, 10))
                log.warning("a new run begins in %.1f s", pause, extra={"event": "run_restarting"})
                self._stop.wait(pause)

    def _begin(self, job: Job) -> None:
        """Give back what the run before left in the relay; waits for Redis as long as it is away."""
        relay = open_relay(job.redis_url, job.plan)
        ledger = open_ledger(job.ledger)
        retrying = Retrying(
            retry=retry_if_exception_type((LedgerUnavailableError, RelayUnavailableError)),
            wait=wait_exponential_jitter(initial=0.1, max=2),
            stop=lambda _: self._stop.is_set(),
            sleep=self._stop.wait,
            retry_error_callback=lambda _: 0,
        )
        try:
            released = retrying(release_leftovers, relay, ledger)
            if released:
                log.info("released %d messages of the run before", released, extra={"event": "messages_released"})
        finally:
            relay.close()
            ledger.close()

    def _watch(self, query: StreamingQuery) -> None:
        """Return when the query has ended: by ``stop`` after the running micro-batch, or by a fault."""
        while query.isActive and not self._stop.is_set():
            time.sleep(_LOOK)
        if self._stop.is_set():
            _finish_batch(query)
        try:
            fault = query.exception()
        except PySparkException as error:
            fault = error
        if fault is not None and not self._stop.is_set():
            log.error("the run ended: %s", _first_lines(str(fault)), extra={"event": "run_failed"})


def release_leftovers(relay: Relay, ledger: Ledger) -> int:
    """Empty the relay and release the roots of everything in it; returns how many were pending."""
    released = 0
    while payloads := relay.drain():
        roots = np.unique(np.concatenate([decode(payload).lineage.roots for payload in payloads]))
        released += ledger.release(roots.tolist())
    return released


def _finish_batch(query: StreamingQuery) -> None:
    """Stop between two micro-batches where that takes less than a few seconds, so that little has to be done again."""
    deadline = time.monotonic() + 3
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        if not query.status["isDataAvailable"]:
            break
        time.sleep(0.02)
    query.stop()


def _first_lines(text: str) -> str:
    """What a person needs of Spark's report: its last line with an exception in it, else its first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines or ["no reason given"])[-1][:500]

"""What travels to the Spark tasks: everything one of them needs to run its share of a level. No pyspark here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache

from acker import LedgerSpec, RedisMetrics, Token, open_ledger
from acker.redis_client import connect_topology
from queues import Relay
from spark_jobs.garbage import spare_the_collector, task_ended
from spark_jobs.levels import Plan
from spark_jobs.relays import relay_on
from spark_jobs.runner import LevelRunner
from spark_jobs.shape import shape_of
from spark_jobs.snapshots.redis_store import RedisSnapshots
from spark_jobs.snapshots.sealing import new_key
from spark_jobs.spark import run as engine
from spark_jobs.state import RedisStateStore
from spark_jobs.suspects.redis_book import RedisCaseBook
from spark_jobs.suspects.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of one topology; pickled into the Spark query. The addresses may hold passwords."""

    run: str
    plan: Plan
    ledger: LedgerSpec
    epoch: int = 0
    """Grows from run to run: what an earlier run still writes to a state is refused."""
    amqp_url: str | None = field(default=None, repr=False)
    """For bolts that publish."""
    key: bytes = field(default_factory=new_key, repr=False)
    """Seals what is pickled into Redis."""

    @property
    def redis_url(self) -> str:
        """The server of the relay and the counters: the ledger's first."""
        return self.ledger.urls[0]

    @property
    def attendance(self) -> str:
        """What the driver says of itself: the run, and the shape that spout workers must have too."""
        return f"{self.run} {shape_of(self.plan.topology)}"

    def run_level(self, level: int, token: Token, payloads: Iterable[bytes], attempt: int) -> list[tuple[int, bytes]]:
        """Run the bolts that a lane hosts at its level; returns (lane, chunk) rows for the next level.

        ``attempt`` is 0 at the first one.
        """
        rows = _runner(self, level).run(token, payloads, attempt)
        task_ended()
        return rows

    def prepare(self) -> None:
        """Make this process ready to run any level."""
        for level in range(1, self.plan.levels + 1):
            _runner(self, level)

    def open_relay(self) -> Relay:
        """A relay of its own connection."""
        return open_relay(self.redis_url, self.plan)

    def open_snapshots(self) -> RedisSnapshots:
        """The bolts' state between micro-batches, with a connection of its own."""
        name = self.plan.topology.name
        return RedisSnapshots(connect_topology(self.redis_url, name), name, self.run)

    def open_book(self) -> RedisCaseBook:
        """What is known about tuples that kill processes, with a connection of its own."""
        name = self.plan.topology.name
        return RedisCaseBook(connect_topology(self.redis_url, name), name)


def open_relay(redis_url: str, plan: Plan) -> Relay:
    """The relay of a planned topology on a Redis server."""
    return relay_on(redis_url, plan.topology.name, plan.relay_lanes)


def ledger_spec_of(plan: Plan, redis_urls: tuple[str, ...]) -> LedgerSpec:
    """The ledger of a planned topology."""
    return engine.ledger_spec_of(plan.topology, redis_urls)


_runners: dict[tuple[str, int], LevelRunner] = {}
"""The runners of this process, by run and level: bolts and connections live as long as the Python worker."""


def _runner(job: Job, level: int) -> LevelRunner:
    """The runner of a level; those of earlier runs are closed. Jobs of one run are equal, however often they were unpickled."""
    found = _runners.get((job.run, level))
    if found is None:
        if any(run != job.run for run, _ in _runners):
            close_runners()
        found = _runners[job.run, level] = _new_runner(job, level)
        spare_the_collector()
    return found


def close_runners() -> None:
    """Clean up the bolts of this process, whose runs have ended; if one has not, it goes on with its snapshots."""
    while _runners:
        _, runner = _runners.popitem()
        runner.close()


def _new_runner(job: Job, level: int) -> LevelRunner:
    config = {**job.plan.topology.config.as_mapping(), "redis_url": job.redis_url, "amqp_url": job.amqp_url}
    return LevelRunner(
        plan=job.plan,
        level=level,
        ledger=open_ledger(job.ledger),
        metrics=RedisMetrics(job.redis_url, job.plan.topology.name),
        config=config,
        snapshots=job.open_snapshots(),
        key=job.key,
        state=RedisStateStore(job.ledger, job.epoch),
        book=job.open_book(),
        watchdog=_watchdog(job.ledger.message_timeout),
    )


_SHORTEST_HANG = timedelta(seconds=5)
"""Whatever the timeout: a machine that is busy with other things lets processes wait for seconds."""


@lru_cache(maxsize=1)
def _watchdog(limit: timedelta | None) -> Watchdog | None:
    """One a process, for it has a thread that never ends; the process runs one task at a time."""
    return Watchdog(max(limit, _SHORTEST_HANG)) if limit is not None else None

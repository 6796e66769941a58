"""What travels to Spark's Python workers when the kit runs a topology: the job, and where the test's own modules are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from acker import Token
from spark_jobs.job import Job, close_runners
from spark_jobs.testing.capture import is_watched
from spark_jobs.testing.imports import Imports
from spark_jobs.testing.seen_store import SeenStore


@dataclass(frozen=True, kw_only=True)
class WatchedJob(Job):
    """A job whose tasks put the chunks that the kit watches aside."""

    imports: Imports

    def run_level(self, level: int, token: Token, payloads: Iterable[bytes], attempt: int) -> list[tuple[int, bytes]]:
        given = list(payloads)
        rows = super().run_level(level, token, given, attempt)
        _seen_store(self.redis_url, self.plan.topology.name).put(
            (token.step, token.task),
            [payload for payload in given if is_watched(self.plan, level, payload)],
        )
        return rows

    def clean_up(self, workers: int) -> None:
        """Close the bolts in this worker, and keep it until so many have done it, or another task would be given it."""
        close_runners()
        _seen_store(self.redis_url, self.plan.topology.name).meet(workers)

    def __reduce__(self) -> tuple[Callable[..., WatchedJob], tuple[Imports, Mapping[str, Any]]]:
        """The imports come first: when they are unpickled, what follows may name the test's own modules."""
        others = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "imports"}
        return _job, (self.imports, others)


def _job(imports: Imports, others: Mapping[str, Any]) -> WatchedJob:
    return WatchedJob(imports=imports, **others)


@lru_cache(maxsize=1)
def _seen_store(redis_url: str, topology: str) -> SeenStore:
    """The connection of this Python worker."""
    return SeenStore(redis_url, topology)

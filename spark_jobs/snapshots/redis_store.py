"""The store in Redis. All keys of a topology share a hash tag, so that one server of a cluster holds them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import redis

from acker.layout import topology_prefix
from acker.redis_errors import translated
from acker.scripts import script_source
from spark_jobs.snapshots.store import StaleSaveError

_SCAN = 100


class RedisSnapshots:
    """``SnapshotStore`` on one Redis server. Takes over ``client``, which must not decode responses. Thread-safe.

    Raises LedgerUnavailableError while the server does not answer, LedgerRefusedError when it refuses.
    """

    def __init__(self, client: redis.Redis, topology: str, run: str) -> None:
        self._client, self._run = client, run
        self._prefix = topology_prefix(topology) + "snapshots:"
        self._runs = self._prefix + "runs"
        self._newest, self._contents = self._keys(run)
        self._save = client.register_script(script_source("save", "spark_jobs.snapshots"))

    def find(self, tasks: Sequence[int], batch: int) -> dict[int, int]:
        if not tasks:
            return {}
        with translated("look for the bolts' state"):
            pairs: Any = self._client.hmget(self._newest, [str(task) for task in tasks])
        found = {}
        for task, pair in zip(tasks, pairs, strict=True):
            before = [number for number in _numbers(pair or b"") if number < batch]
            if before:
                found[task] = max(before)
        return found

    def load(self, task: int, batch: int) -> bytes | None:
        with translated("load the bolts' state"):
            content: Any = self._client.hget(self._contents, f"{task}:{batch}")
        return cast("bytes | None", content)

    def save(self, batch: int, snapshots: Mapping[int, bytes]) -> None:
        if not snapshots:
            return
        arguments: list[int | str | bytes] = [self._run, batch]
        for task, content in snapshots.items():
            arguments += [task, content]
        with translated("save the bolts' state"):
            if not self._save(keys=[self._runs, self._newest, self._contents], args=arguments):
                raise StaleSaveError(f"micro-batch {batch} is over")

    def drain(self) -> Iterator[tuple[str, bytes]]:
        with translated("take over the bolts' state"):
            runs: Any = self._client.smembers(self._runs)
        for run in sorted(runs):
            yield from self._drain_run(run)

    def _drain_run(self, run: bytes) -> Iterator[tuple[str, bytes]]:
        # Only a stranger names a run by what is no text; his name stays one key.
        newest, contents = (key.encode(errors="surrogateescape") for key in self._keys(run.decode(errors="surrogateescape")))
        cursor = -1
        while cursor != 0:
            with translated("take over the bolts' state"):
                page: Any
                cursor, page = self._client.hscan(contents, max(cursor, 0), count=_SCAN)
            for name, content in page.items():
                yield f"{_shown(name)} of run {_shown(run)}", content
        with translated("take over the bolts' state"):
            # Afterwards: a driver that is interrupted in between drains again.
            self._client.delete(newest, contents)
            self._client.srem(self._runs, run)

    def close(self) -> None:
        self._client.close()

    def _keys(self, run: str) -> tuple[str, str]:
        return f"{self._prefix}{run}:newest", f"{self._prefix}{run}:contents"


def _numbers(pair: bytes) -> list[int]:
    """The newest two micro-batches; what is no number was not written by us, and there is no snapshot of that name."""
    return [int(number) for number in pair.split() if number.isdigit()]


def _shown(name: bytes) -> str:
    return name[:50].decode(errors="backslashreplace")

"""Where Spark tasks put the chunks that the kit watches, until it fetches them: a hash in Redis."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from acker.layout import topology_prefix
from acker.redis_client import connect_topology
from acker.redis_errors import translated

_DELETED_AT_ONCE = 500
_MEETING_S = 1.0


class SeenStore:
    """Chunks by the task that was given them, so that a task that is tried again replaces what it had put there."""

    def __init__(self, redis_url: str, topology: str) -> None:
        """``topology``: a name that stands for itself in a pattern of keys."""
        self._key = topology_prefix(topology) + "seen"
        self._client = connect_topology(redis_url, topology)
        self._meeting = topology_prefix(topology) + "meeting"
        self._pattern = f"tiercel:{{{topology}*"

    def check(self) -> None:
        """Raise LedgerUnavailableError or LedgerRefusedError if the server is not to be used."""
        with translated("run on Redis"):
            self._client.ping()

    def put(self, task: tuple[int, int], payloads: Sequence[bytes]) -> None:
        """Keep what a task (micro-batch, lane of a level) was given."""
        if payloads:
            name = ":".join(map(str, task))
            with translated("keep what was emitted"):
                self._client.hset(self._key, mapping={f"{name}:{index}": payload for index, payload in enumerate(payloads)})

    def take(self) -> list[bytes]:
        """All of it; no task runs now."""
        with translated("fetch what was emitted"), self._client.pipeline(transaction=True) as pipeline:
            pipeline.hgetall(self._key)
            pipeline.delete(self._key)
            found: Any = pipeline.execute()[0]
        return [payload for _, payload in sorted(found.items(), key=lambda entry: _task_of(entry[0]))]

    def meet(self, number: int) -> None:
        """Return when so many have called this, or after a second."""
        deadline = time.monotonic() + _MEETING_S
        with translated("meet other workers"):
            self._client.incr(self._meeting)
            while int(self._client.get(self._meeting) or number) < number and time.monotonic() < deadline:
                time.sleep(0.005)

    def wipe(self) -> None:
        """Remove every key of the topology, whoever made it."""
        with translated("clear up"):
            keys = list(self._client.scan_iter(self._pattern, count=_DELETED_AT_ONCE))
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                self._client.unlink(*keys[start : start + _DELETED_AT_ONCE])

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._client.close()


def _task_of(name: bytes) -> list[int]:
    return [int(number) for number in name.split(b":")]

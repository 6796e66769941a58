"""Which topologies ran on a Redis server, and on which queues, so that ``depths`` and ``errors`` need not be told."""

from __future__ import annotations

from collections.abc import Sequence

from acker.redis_client import connect, translated

_KEY = "tiercel:queues"
"""A hash: queue name to topology name."""
_TOPOLOGIES = "tiercel:topologies"
"""A set of names: not every topology reads a queue."""


class QueueRegistry:
    """Remembered by the spout workers as they start; best effort."""

    def __init__(self, redis_url: str) -> None:
        self._client = connect(redis_url)

    def announce(self, topology: str, queues: Sequence[str]) -> None:
        """Say that a topology runs here, and that these queues belong to it. Idempotent."""
        with translated("note the queues"):
            self._client.sadd(_TOPOLOGIES, topology)
            if queues:
                self._client.hset(_KEY, mapping=dict.fromkeys(queues, topology))

    def topologies(self) -> list[str]:
        """The topologies that ran here, in the order of their names."""
        with translated("look up the topologies"):
            known: set[bytes] = self._client.smembers(_TOPOLOGIES)  # type: ignore[assignment]
        return sorted(topology.decode() for topology in known)

    def queues(self) -> dict[str, str]:
        """Queue name to topology name."""
        with translated("look up the queues"):
            known: dict[bytes, bytes] = self._client.hgetall(_KEY)  # type: ignore[assignment]
        return {queue.decode(): topology.decode() for queue, topology in sorted(known.items())}

"""Which queues the topologies on a Redis server work on, so that ``depths`` and ``errors`` need not be told."""

from __future__ import annotations

from collections.abc import Sequence

from acker.redis_client import connect, translated

_KEY = "tiercel:queues"
"""A hash: queue name to topology name."""


class QueueRegistry:
    """Remembered by the spout workers as they start; best effort."""

    def __init__(self, redis_url: str) -> None:
        self._client = connect(redis_url)

    def announce(self, topology: str, queues: Sequence[str]) -> None:
        """These queues belong to this topology. Idempotent."""
        if queues:
            with translated("note the queues"):
                self._client.hset(_KEY, mapping=dict.fromkeys(queues, topology))

    def topologies(self) -> list[str]:
        """The topologies that ran here, in the order of their names."""
        return sorted(set(self.queues().values()))

    def queues(self) -> dict[str, str]:
        """Queue name to topology name."""
        with translated("look up the queues"):
            known: dict[bytes, bytes] = self._client.hgetall(_KEY)  # type: ignore[assignment]
        return {queue.decode(): topology.decode() for queue, topology in sorted(known.items())}

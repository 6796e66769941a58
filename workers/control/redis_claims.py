"""Claims in Redis: one key per task, which expires by itself."""

from __future__ import annotations

import secrets
from typing import Any

from tiercel.acker.connection.client import connect_topology
from tiercel.acker.connection.errors import translated
from tiercel.acker.layout import topology_prefix
from tiercel.workers.control.claims import CLAIM


class RedisClaims:
    """``Claims`` on one server; thread-safe. Connects on its first call."""

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._prefix = topology_prefix(topology) + "claim:"
        self._client = connect_topology(redis_url, topology)
        # Of this process and no other, not even of the one that it replaces: that one may be
        # stopped, and go on later.
        self._worker = secrets.token_hex(12).encode()

    def take(self, task_ids: range) -> int | None:
        return next((task_id for task_id in task_ids if self._take(task_id)), None)

    def keep(self, task_id: int) -> bool:
        with translated("keep a spout task"):
            # If it is another's by now, that one's claim lasts a little longer, which does no harm.
            found: Any = self._client.getex(self._key(task_id), px=CLAIM)
        return self._take(task_id) if found is None else bool(found == self._worker)

    def leave(self, task_id: int) -> None:
        with translated("leave a spout task"):
            # Lapses and is claimed by another between the two calls once in a blue moon; that one
            # claims it again in a second.
            if self._client.get(self._key(task_id)) == self._worker:
                self._client.delete(self._key(task_id))

    def _take(self, task_id: int) -> bool:
        with translated("claim a spout task"):
            # GET: when the reply is lost, the client repeats it, and finds its own name.
            found: Any = self._client.set(
                self._key(task_id), self._worker, px=CLAIM, nx=True, get=True
            )
        return found in (None, self._worker)

    def _key(self, task_id: int) -> str:
        return f"{self._prefix}{task_id}"

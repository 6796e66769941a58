"""Control in Redis: one key a topology for the state, one a spout task for its presence. They expire by themselves."""

from __future__ import annotations

import json
from typing import Any

from acker.layout import topology_prefix
from acker.redis_client import connect_topology
from acker.redis_errors import translated
from workers.control import KILL_LASTS, PRESENCE, Presence, State


class RedisControl:
    """``Control`` on one server; thread-safe. Connects on its first call."""

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._key = topology_prefix(topology) + "control"
        self._client = connect_topology(redis_url, topology)

    def order(self, state: State) -> None:
        with translated("control the topology"):
            self._client.set(self._key, state.value, px=KILL_LASTS if state is State.KILLED else None)

    def state(self) -> State | None:
        with translated("read the topology's state"):
            found: Any = self._client.get(self._key)
        return _state(found)

    def report(self, task_id: int, presence: Presence, known: State) -> State | None:
        said = json.dumps([presence.active, presence.pending, round(presence.oldest_s, 3)])
        with translated("read the topology's state"), self._client.pipeline(transaction=False) as pipeline:
            pipeline.set(self._task(task_id), said, px=PRESENCE)
            # NX: what somebody orders at this moment is not overwritten.
            pipeline.set(self._key, known.value, nx=True, get=True)
            _, found = pipeline.execute()
        return _state(found)

    def leave(self, task_id: int) -> None:
        with translated("leave the topology"):
            self._client.delete(self._task(task_id))

    def present(self, task_ids: range) -> dict[int, Presence]:
        if not task_ids:
            return {}
        with translated("look for the topology's spouts"):
            found: Any = self._client.mget([self._task(task_id) for task_id in task_ids])
        return {task_id: _presence(said) for task_id, said in zip(task_ids, found, strict=True) if said is not None}

    def close(self) -> None:
        self._client.close()

    def _task(self, task_id: int) -> str:
        return f"{self._key}:{task_id}"


def _state(found: bytes | None) -> State | None:
    return None if found is None else State(found.decode())


def _presence(said: bytes) -> Presence:
    active, pending, oldest_s = json.loads(said)
    return Presence(active=active, pending=pending, oldest_s=oldest_s)

"""Presence in Redis: one key per place, which expires by itself, and one with the number of the
newest run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiercel.acker.connection.client import connect_topology
from tiercel.acker.connection.errors import translated
from tiercel.acker.connection.script_sources import script_source
from tiercel.acker.layout import topology_prefix
from tiercel.workers.control.presence import Attendant, Place

_PACKAGE = "tiercel.workers.control"


class RedisPresences:
    """``Presences`` on one server. Connects on its first call."""

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._prefix = topology_prefix(topology)
        self._client = connect_topology(redis_url, topology)
        names = ("take_place", "leave_place", "draw_run")
        self._take, self._leave, self._draw = (
            self._client.register_script(script_source(name, _PACKAGE)) for name in names
        )

    def take(self, place: Place, attendant: Attendant, *, by_force: bool = False) -> bool:
        lasts_ms = int(place.lasts.total_seconds() * 1000)
        words = [attendant.name, " ".join(attendant), lasts_ms, int(by_force)]
        with translated(f"take the place {place.name}"):
            return bool(self._take(keys=[self.key(place)], args=words))

    def leave(self, place: Place, name: str) -> None:
        with translated(f"leave the place {place.name}"):
            self._leave(keys=[self.key(place)], args=[name])

    def look(self, places: Sequence[Place]) -> list[Attendant | None]:
        if not places:
            return []
        with translated("look which processes of the topology are there"):
            found: Any = self._client.mget([self.key(place) for place in places])
        return [None if value is None else _attendant(value) for value in found]

    def draw_run(self, place: Place, name: str) -> int | None:
        with translated("begin a run"):
            drawn: Any = self._draw(keys=[self.key(place), self._prefix + "run"], args=[name])
        return None if drawn is None else int(drawn)

    def close(self) -> None:
        self._client.close()

    def key(self, place: Place) -> str:
        """Return the key of a place."""
        return f"{self._prefix}present:{place.name}"


def _attendant(value: bytes) -> Attendant:
    name, note = [*value.decode(errors="replace").split(maxsplit=1), "", ""][:2]
    return Attendant(name, note)

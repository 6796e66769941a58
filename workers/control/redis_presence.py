"""Presence in Redis: one key per seat, and one with the number of the newest run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiercel.acker.connection.client import connect_topology
from tiercel.acker.connection.errors import translated
from tiercel.acker.connection.script_sources import script_source
from tiercel.acker.layout import topology_prefix
from tiercel.workers.control.presence import Attendant, Seat

_PACKAGE = "tiercel.workers.control"


class RedisPresences:
    """``Presences`` on one server. Connects on its first call."""

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._prefix = topology_prefix(topology)
        self._client = connect_topology(redis_url, topology)
        names = ("take_seat", "leave_seat", "draw_run")
        self._take, self._leave, self._draw = (
            self._client.register_script(script_source(name, package=_PACKAGE)) for name in names
        )

    def take(self, seat: Seat, attendant: Attendant, *, by_force: bool = False) -> bool:
        lasts_ms = int(seat.lasts.total_seconds() * 1000)
        words: list[str | int] = [attendant.name, " ".join(attendant), lasts_ms, int(by_force)]
        with translated("say which processes run the topology"):
            return bool(self._take(keys=[self.key(seat)], args=words))

    def leave(self, seat: Seat, name: str) -> None:
        with translated("say which processes run the topology"):
            self._leave(keys=[self.key(seat)], args=[name])

    def look(self, seats: Sequence[Seat]) -> list[Attendant | None]:
        if not seats:
            return []
        with translated("look which processes run the topology"):
            found: Any = self._client.mget([self.key(seat) for seat in seats])
        return [None if value is None else _attendant(value) for value in found]

    def draw_run(self, seat: Seat, name: str) -> int | None:
        with translated("begin a run"):
            drawn: Any = self._draw(keys=[self.key(seat), self._prefix + "run"], args=[name])
        return None if drawn is None else int(drawn)

    def close(self) -> None:
        self._client.close()

    def key(self, seat: Seat) -> str:
        """Return the key of a seat."""
        return f"{self._prefix}present:{seat.name}"


def _attendant(value: bytes) -> Attendant:
    name, note = [*value.decode(errors="replace").split(maxsplit=1), "", ""][:2]
    return Attendant(name, note)

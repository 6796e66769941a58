"""The lease in Redis: one key, which expires by itself, and one with the number
of the newest run.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from tiercel.acker.connection.client import connect_topology
from tiercel.acker.connection.errors import translated
from tiercel.acker.layout import topology_prefix
from tiercel.workers.control.lease import LASTS, Holder
from tiercel.workers.control.parallelism import pack, unpack

_NOTHING = "-"


class RedisLease:
    """``Lease`` on one server; thread-safe. Connects on its first call."""

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._key = topology_prefix(topology) + "lease"
        self._runs = topology_prefix(topology) + "run"
        self._client = connect_topology(redis_url, topology)
        names = ("take_lease", "draw_run", "leave_lease")
        self._take, self._draw, self._leave = (
            self._client.register_script(_source(name)) for name in names
        )

    def take(self, holder: Holder) -> bool:
        words = (holder.driver, holder.run, holder.shape, pack(holder.parallelism))
        value = " ".join(word or _NOTHING for word in words)
        lasts_ms = int(LASTS.total_seconds() * 1000)
        with translated("take the driver's lease"):
            return bool(self._take(keys=[self._key], args=[holder.driver, value, lasts_ms]))

    def draw(self, driver: str) -> int | None:
        with translated("begin a run"):
            drawn: Any = self._draw(keys=[self._key, self._runs], args=[driver])
        return None if drawn is None else int(drawn)

    def leave(self, driver: str) -> None:
        with translated("give the driver's lease up"):
            self._leave(keys=[self._key], args=[driver])

    def holder(self) -> Holder | None:
        with translated("look for the driver"):
            found: Any = self._client.get(self._key)
        if found is None:
            return None
        # Fewer words are an older version's, and more a newer one's.
        driver, *others = [*found.decode(errors="replace").split(), *[_NOTHING] * 4][:4]
        run, shape, numbers = ("" if word == _NOTHING else word for word in others)
        return Holder(driver=driver, run=run, shape=shape, parallelism=unpack(numbers))

    def close(self) -> None:
        self._client.close()


def _source(name: str) -> str:
    return resources.files("tiercel.workers.control").joinpath("lua", f"{name}.lua").read_text()

"""Control in Redis: one key for the state, and two for orders to rebalance."""

from __future__ import annotations

from typing import Any

from tiercel.acker.connection.client import connect_topology
from tiercel.acker.connection.errors import translated
from tiercel.acker.connection.script_sources import script_source
from tiercel.acker.layout import topology_prefix
from tiercel.workers.control.contract import KILL_LASTS, Rebalance, State
from tiercel.workers.control.parallelism import Change, number_of
from tiercel.workers.control.unreadable import Unreadable

_PACKAGE = "tiercel.workers.control"


class RedisControl:
    """``Control`` on one server; thread-safe. Connects on its first call."""

    def __init__(self, redis_url: str, topology: str) -> None:
        """``redis_url`` may hold a password."""
        self._key = topology_prefix(topology) + "control"
        self._rebalances = [f"{self._key}:rebalances", f"{self._key}:parallelism"]
        self._client = connect_topology(redis_url, topology)
        self._rebalance = self._client.register_script(script_source("rebalance", package=_PACKAGE))
        self._rebalanced = self._client.register_script(
            script_source("rebalanced", package=_PACKAGE)
        )
        self._unreadable = Unreadable("run all parts of the topology with one version of tiercel")

    def order(self, state: State) -> None:
        with translated("control the topology"):
            self._client.set(
                self._key, state.value, px=KILL_LASTS if state is State.KILLED else None
            )

    def state(self) -> State | None:
        with translated("read the topology's state"):
            found: Any = self._client.get(self._key)
        return self._state(found)

    def ask(self, known: State) -> State | None:
        with translated("read the topology's state"):
            # NX: what an operator orders at this moment is not overwritten.
            found: Any = self._client.set(self._key, known.value, nx=True, get=True)
        return self._state(found)

    def rebalance(self, change: Change) -> None:
        pairs = [part for bolt, number in change.items() for part in (bolt, number or "")]
        with translated("control the topology"):
            self._rebalance(keys=self._rebalances, args=pairs)

    def rebalanced(self, known: Rebalance) -> Rebalance:
        pairs = [part for pair in known.parallelism.items() for part in pair]
        with translated("look for an order to rebalance"):
            count, *found = self._rebalanced(keys=self._rebalances, args=[known.number, *pairs])
        numbers = {}
        for bolt, number in zip(found[::2], found[1::2], strict=True):
            try:
                numbers[bolt.decode()] = number_of(number.decode())
            except ValueError as error:
                self._unreadable.pass_over(
                    f"the number of tasks of {bolt!r:.50} ({self._rebalances[1]})", number, error
                )
        # An entry that another version wrote is no order.
        return Rebalance(number=int(count) if count.isdigit() else 0, parallelism=numbers)

    def close(self) -> None:
        self._client.close()

    def _state(self, found: bytes | None) -> State | None:
        if found is None:
            return None
        try:
            return State(found.decode())
        except ValueError as error:
            self._unreadable.pass_over(f"the order {self._key}", found, error)
            return None

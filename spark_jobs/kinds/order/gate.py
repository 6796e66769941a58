"""The gate of order per key: a call begins when the step of its predecessor has left."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.order.task_order import TaskOrder


class OrderGate:
    """``FlightGate`` of one bolt task."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        # Keys of calls that have begun and whose step has not left.
        self.busy: set[bytes] = set()
        # Keys of those that were passed over in this look.
        self._passed: set[bytes] = set()
        # Keys of calls that have ended since a step left.
        self._over: list[bytes] = []

    @property
    def next_at(self) -> float | None:
        return self._order.next_at

    def look(self, waiting: Sequence[Call]) -> None:  # noqa: ARG002 - each is asked about
        self._order.held.clear()
        self._passed.clear()

    def may_begin(self, call: Call) -> bool:
        key = self._order.key(call.tup)
        if key is None:
            return True
        free = key not in self.busy and key not in self._passed
        return free and self._order.comes_next(key, call.tup)

    def began(self, call: Call) -> None:
        if (key := self._order.key(call.tup)) is not None:
            self.busy.add(key)
            self._order.held.discard(key)

    def passed_over(self, call: Call) -> None:
        key = self._order.key(call.tup)
        if key is None:
            return
        if not self._order.awaits(key):
            self._passed.add(key)
        elif key not in self.busy:
            # What is awaited may stand behind it.
            self._order.held.add(key)

    def over(self, call: Call) -> None:
        """Its key stays busy until its step has left: what becomes of it is not known before."""
        if (key := self._order.key(call.tup)) is not None:
            self._over.append(key)

    def comes_first(self, call: Call) -> bool:
        """Return True if other tuples wait for this one."""
        order = self._order
        key = order.key(call.tup)
        return key is not None and order.awaits(key) and order.comes_next(key, call.tup)

    def in_turn(self, calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
        """Part calls into those that may be under way at once, and others."""
        keys: set[bytes] = set()
        chosen: list[Call] = []
        others: list[Call] = []
        for call in calls:
            key = self._order.key(call.tup)
            may = key is None or (key not in keys and self._order.comes_next(key, call.tup))
            (chosen if may else others).append(call)
            keys |= set() if key is None else {key}
        return chosen, others

    def left(self) -> None:
        """The step of those that are over has left."""
        self.busy.difference_update(self._over)
        self._over.clear()

    def close(self) -> None:
        """Nothing is left: the next attempt begins with what was sealed."""

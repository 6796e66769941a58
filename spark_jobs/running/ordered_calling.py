"""Attempts at the task of a bolt with calls under way and an order."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.acker.inbox.chunk import Chunk
from tiercel.spark_jobs.running.backlog import Share
from tiercel.spark_jobs.running.calling import CallingAttempt
from tiercel.spark_jobs.running.calls.call import Call
from tiercel.spark_jobs.running.calls.gates import FlightGate
from tiercel.spark_jobs.running.order_gate import OrderGate
from tiercel.spark_jobs.running.ordered_attempt import Ordered


class OrderedCallingAttempt(Ordered, CallingAttempt):
    """``CallingAttempt`` whose calls wait for the steps of their predecessors."""

    def turn(self, wait_s: float = 0.0) -> bool:
        busy = self._gate.busy
        if self._order.lapse(self._backlog):
            # What it held back may begin, though no call has ended.
            self._flight.ask_again()
        shares = self._order.too_long_in(self._backlog, busy, full=self._flight.full)
        if self._order:
            self._apart.look(lambda: self._order.waiting_in(self._backlog, busy))
        if shares:
            gone = {(one.entry.position, row) for one in shares for row in one.rows.tolist()}
            for waiting in (self._line, self._flight):
                waiting.withdraw(lambda call: (call.position, call.tup.row) in gone)
            self._backlog.give_up(shares)
            self._copy.load((), together=False)
            self._commit_calls((), (), together=True)
            self._release(shares)
        return super().turn(wait_s) or bool(shares)

    @property
    def next_at(self) -> float | None:
        return self._next_at(super().next_at)

    def _comes_first(self, call: Call) -> bool:
        key = self._order.key(call.tup)
        return key is not None and self._order.awaits(key) and self._order.comes_next(key, call.tup)

    def _in_turn(self, calls: list[Call]) -> list[Call]:
        keys: set[bytes] = set()
        chosen = []
        for call in calls:
            key = self._order.key(call.tup)
            if key is None or (key not in keys and self._order.comes_next(key, call.tup)):
                chosen.append(call)
            else:
                self._flight.add(call)
            keys |= set() if key is None else {key}
        return chosen

    def _gates(self) -> Sequence[FlightGate]:
        self._gate = OrderGate(self._order)
        return (self._gate,)

    def _commit_calls(
        self, shares: Sequence[Share], ticks: Sequence[Chunk], *, together: bool
    ) -> None:
        super()._commit_calls(shares, ticks, together=together)
        self._gate.left()
        # Else it would wait for more tuples, with their successors at hand.
        self._flight.ask_again()

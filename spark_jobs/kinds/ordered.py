"""Bolts with an order (``ordered_by``): a kind of bolt, with an order around it.

A step never has two tuples of one key, and tuples wait for a predecessor that failed. Tuples that
waited for too long are given back by a step of their own.
"""

from __future__ import annotations

from typing import cast

from tiercel.spark_jobs.kinds.calling import Calls
from tiercel.spark_jobs.kinds.calls.flight import MOST_HELD_BACK
from tiercel.spark_jobs.kinds.order.gate import OrderGate
from tiercel.spark_jobs.kinds.order.task_order import ReadyBacklog, TaskOrder
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.kind import BoltKind, StepInput


class InOrder:
    """``BoltKind`` whose steps take the next tuple of each key."""

    def __init__(self, attempt: Attempt, inner: BoltKind, order: TaskOrder) -> None:
        """``inner`` takes and chooses among the tuples that may begin."""
        self._attempt = attempt
        self._inner = inner
        self._order = order
        self._waiting = cast("ReadyBacklog", attempt.backlog)
        self.execution = inner.execution
        self.copy = inner.copy
        self.slices = inner.slices
        self.gives_back = inner.gives_back
        self.hanging = inner.hanging
        self.wake = inner.wake
        self.close = inner.close

    @property
    def next_at(self) -> float | None:
        return self._order.tell_at(self._order.next_at)

    def takes(self, wait_s: float) -> StepInput | None:
        attempt = self._attempt
        order = self._order
        waiting = self._waiting
        if order.lapse(waiting):
            waiting.refresh()
        shares = order.too_long_in(waiting, full=self._is_full)
        order.tell(waiting)
        if shares:
            waiting.give_up(shares)
            return StepInput(released=shares)
        if wait_s and (next_at := self.next_at) is not None:
            wait_s = min(wait_s, max(0.0, next_at - attempt.around.loop.time()))
        taken = None
        if not self._is_full:
            taken = self._inner.takes(wait_s)
        elif wait_s and not waiting:
            attempt.stop.wait(wait_s)
        if taken is None and self._is_full:
            # Where no more are taken there is no company to wait for.
            return attempt.first(self.slices.size if waiting else 0)
        return taken

    @property
    def _is_full(self) -> bool:
        """True if no more tuples can be held back, and so none are taken."""
        return self._waiting.held_back >= MOST_HELD_BACK


class CallsInOrder:
    """``BoltKind`` of calls that wait for the steps of their predecessors."""

    def __init__(self, attempt: Attempt, calls: Calls, gate: OrderGate, order: TaskOrder) -> None:
        self._attempt = attempt
        self._calls = calls
        self._gate = gate
        self._order = order
        # True if the step that was taken last may let others begin.
        self._stepped = False
        self.execution = calls.execution
        self.copy = calls.copy
        self.slices = calls.slices
        self.gives_back = calls.gives_back
        self.hanging = calls.hanging
        self.wake = calls.wake
        self.close = calls.close

    @property
    def next_at(self) -> float | None:
        return self._order.tell_at(self._calls.next_at)

    def takes(self, wait_s: float) -> StepInput | None:
        if self._stepped:
            self._gate.left()
            # Else it would wait for more tuples, with their successors at hand.
            self._calls.flight.ask_again()
        taken = self._given_up() or self._calls.takes(wait_s)
        self._stepped = taken is not None
        return taken

    def _given_up(self) -> StepInput | None:
        """Return the step that gives back tuples that have waited for too long."""
        order = self._order
        backlog = self._attempt.backlog
        busy = self._gate.busy
        flight = self._calls.flight
        if order.lapse(backlog):
            # Tuples that it held back may begin, though no call has ended.
            flight.ask_again()
        shares = order.too_long_in(backlog, busy, full=flight.full)
        order.tell(backlog, busy)
        return self._calls.withdraw(shares) if shares else None

"""Bolts whose tuples may have to wait in the backlog: ``InOrder`` wraps the kind of the bolt.

With ``Retry`` a failed tuple stays in the backlog and is executed again after its wait. With an
order (``ordered_by``) the other tuples of its key wait for it: a step never has two tuples of one
key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from tiercel.spark_jobs.kinds.calling import Calls
from tiercel.spark_jobs.kinds.calls.flight import MOST_HELD_BACK
from tiercel.spark_jobs.kinds.retries import TaskRetries
from tiercel.spark_jobs.kinds.task_order import OrderGate, ReadyBacklog, TaskOrder
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.backlog import OpenEntry
from tiercel.spark_jobs.running.kind import BoltKind, StepInput


class InOrder:
    """``BoltKind`` that wraps another kind; its steps take tuples that need not wait."""

    def __init__(self, attempt: Attempt, inner: BoltKind, order: TaskOrder | TaskRetries) -> None:
        """``inner`` chooses its steps from the tuples that may begin."""
        self._attempt = attempt
        self._inner = inner
        self._order = order
        self.execution = inner.execution
        self.copy = inner.copy
        self.slices = inner.slices
        self.gives_back = inner.gives_back
        self.under_way = inner.under_way
        self.wake = inner.wake
        self.close = inner.close

    @property
    def next_at(self) -> float | None:
        moments = [at for at in (self._inner.next_at, self._order.next_at) if at is not None]
        return self._order.tell_at(min(moments, default=None))

    @property
    def at_work(self) -> bool:
        return self._inner.at_work

    def takes(self, wait_s: float) -> StepInput | None:
        attempt = self._attempt
        order = self._order
        waiting = cast("ReadyBacklog", attempt.backlog)
        if order.due(waiting):
            waiting.refresh()
        is_full = waiting.held_back >= MOST_HELD_BACK
        order.tell(waiting)
        if wait_s and (next_at := self.next_at) is not None:
            wait_s = min(wait_s, max(0.0, next_at - attempt.around.loop.time()))
        taken = None
        if not is_full:
            taken = self._inner.takes(wait_s)
        elif wait_s and not waiting:
            attempt.stop.wait(wait_s)
        if taken is None and waiting.held_back >= MOST_HELD_BACK:
            # No more tuples are fetched, so a batch must not wait for them.
            return attempt.first(self.slices.size if waiting else 0)
        return taken

    def ends(self, wait_s: float) -> StepInput | None:
        return self._inner.ends(wait_s)


class CallsInOrder(InOrder):
    """``InOrder`` for concurrent calls, which wait for the steps of their predecessors."""

    def __init__(self, attempt: Attempt, calls: Calls, gate: OrderGate, order: TaskOrder) -> None:
        super().__init__(attempt, calls, order)
        self._calls = calls
        self._gate = gate
        self._in_order = order
        # True if the last call of ``takes`` returned a step, which may let other tuples begin.
        self._stepped = False

    def takes(self, wait_s: float) -> StepInput | None:
        order = self._in_order
        backlog = self._attempt.backlog
        self._let_others_begin()
        if order.due(backlog):
            self._calls.flight.ask_again()
        order.tell(backlog, self._gate.busy)
        taken = self._calls.takes(wait_s)
        self._stepped = taken is not None
        return taken

    def ends(self, wait_s: float) -> StepInput | None:
        self._let_others_begin()
        taken = self._calls.ends(wait_s)
        self._stepped = taken is not None
        return taken

    def _let_others_begin(self) -> None:
        """Let tuples begin that waited for the last step."""
        if self._stepped:
            self._gate.left()
            self._calls.call_again(self._in_order.fresh)
            # Tuples that were held back may begin: do not wait for new tuples.
            self._calls.flight.ask_again()


class CallsAgain(InOrder):
    """``InOrder`` for concurrent calls with ``Retry`` and without an order."""

    def __init__(self, attempt: Attempt, calls: Calls, retries: TaskRetries) -> None:
        super().__init__(attempt, calls, retries)
        self._calls = calls
        self._retries = retries
        # Tuples whose wait has ended and whose calls are not queued.
        self._late: list[tuple[OpenEntry, int]] = []

    def takes(self, wait_s: float) -> StepInput | None:
        attempt = self._attempt
        waiting = cast("ReadyBacklog", attempt.backlog)
        if self._retries.due(waiting):
            waiting.refresh()
            self._late += self._retries.fresh
        # Steps make the calls themselves while they take what an earlier attempt had taken; with a
        # limit, they take these tuples from the line.
        if self._late and (self._calls.line.limited or not self._calls.retakes()):
            self._calls.call_again(list(self._still_late(waiting)))
            self._late.clear()
        self._retries.tell(waiting)
        self._calls.is_full = waiting.held_back >= MOST_HELD_BACK
        if wait_s and (next_at := self.next_at) is not None:
            wait_s = min(wait_s, max(0.0, next_at - attempt.around.loop.time()))
        return self._calls.takes(wait_s)

    def _still_late(self, waiting: ReadyBacklog) -> Iterator[tuple[OpenEntry, int]]:
        """Yield the late tuples that no step has executed meanwhile, each once."""
        entries = {entry.position: entry for entry, _ in self._late}
        ready = {at: {*waiting.may_begin(entry).tolist()} for at, entry in entries.items()}
        for entry, row in self._late:
            if row in ready[entry.position]:
                ready[entry.position].remove(row)
                yield entry, row

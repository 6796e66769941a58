"""Attempts at the task of a bolt with an order that executes one tuple after the other: a step
takes of each key what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.inbox.contract import Inbox
from tiercel.acker.inbox.records import Covered, StaleAttemptError
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.backlog import Backlog, Share
from tiercel.spark_jobs.running.batch_attempt import BatchAttempt
from tiercel.spark_jobs.running.calls.flight import MOST_HELD_BACK
from tiercel.spark_jobs.running.ordered_backlog import OrderedBacklog, ReadyBacklog
from tiercel.spark_jobs.running.ordered_inbox import OrderedInbox
from tiercel.spark_jobs.running.set_apart import SetApart
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.running.step import Done, May, Step
from tiercel.spark_jobs.running.task_order import TaskOrder


class Ordered(Attempt):
    """Base of these attempts, and of those with calls under way: steps are of different keys."""

    def _opened_inbox(self) -> Inbox:
        around = self._around
        self._order = TaskOrder(around, self.task)
        self._apart = SetApart(
            around.ledger, around.loop.time, around.topology.config.message_timeout_secs
        )
        # By the last step.
        self._executed: Sequence[Share] = ()
        return OrderedInbox(super()._opened_inbox(), self._order)

    def _new_backlog(self, done: Mapping[str, bytes]) -> Backlog:
        return OrderedBacklog(done, self._order)

    def _commit(
        self, shares: Sequence[Share], ticks: Sequence[Chunk], sealed: Covered | None
    ) -> None:
        if sealed is not None:
            # Of what it covers it had given some back, or was about to: not to be executed now.
            shares, given_back = self._order.parted(shares)
            self._release(given_back)
        super()._commit(shares, ticks, sealed)

    def _execute(self, shares: Sequence[Share], step: Step, may: May | None) -> Done:
        done = super()._execute(shares, step, may)
        self._order.note(shares, done)
        self._executed = shares
        return done

    def _leave(
        self, covered: Covered, done: Done, states: TaskStates | None, began_ns: int
    ) -> None:
        super()._leave(covered, done, states, began_ns)
        if self._committer.conflicted:
            self._order.note_conflict(self._executed, done)
            # Before the step is finished: one that is finished is not repeated.
            if not self._patiently(self._inbox.seal(covered).perform):
                raise StaleAttemptError("a newer attempt or run has taken the inbox over")

    def _next_at(self, moment: float | None) -> float | None:
        """Return that moment, or an earlier one at which to tell of what waits."""
        if not self._order.held:
            return moment
        return self._apart.next_at if moment is None else min(moment, self._apart.next_at)

    def _release(self, shares: Sequence[Share]) -> None:
        """Give these tuples back to their spout, without blame.

        Only when a step that covers them is sealed: a successor would find them in its inbox, and
        beside them those that came again.
        """
        ledger = self._around.ledger
        roots = [
            root
            for share in shares
            for row in share.rows.tolist()
            for root in roots_of(share.entry.chunk.lineage, row)
        ]
        if ledger is not None and roots:
            self._patiently(lambda: ledger.release(roots))


class OrderedAttempt(Ordered):
    """``Attempt`` whose steps take of each key what comes next."""

    @property
    def next_at(self) -> float | None:
        return self._next_at(self._order.next_at)

    def turn(self, wait_s: float = 0.0) -> bool:
        if self._order.lapse(self._waiting):
            self._waiting.refresh()
        shares = self._order.too_long_in(self._waiting, full=self._is_full)
        if self._order:
            self._apart.look(lambda: self._order.waiting_in(self._waiting))
        if shares:
            self._backlog.give_up(shares)
            self._commit((), (), None)
            self._release(shares)
        if wait_s and self.next_at is not None:
            wait_s = min(wait_s, max(0.0, self.next_at - self._around.loop.time()))
        return super().turn(wait_s) or bool(shares)

    def _new_backlog(self, done: Mapping[str, bytes]) -> Backlog:
        self._waiting = ReadyBacklog(done, self._order)
        return self._waiting

    def _take(self, wait_s: float) -> None:
        if not self._is_full:
            super()._take(wait_s)
        elif wait_s and not self._waiting:
            self._stop.wait(wait_s)

    @property
    def _is_full(self) -> bool:
        """True if no more tuples can be held back, and so none are taken."""
        return self._waiting.held_back >= MOST_HELD_BACK


class OrderedBatchAttempt(OrderedAttempt, BatchAttempt):
    """``BatchAttempt`` whose batches have one tuple of each key."""

    def _most(self) -> int:
        most = super()._most()
        # Where none are taken there is no company to wait for.
        return self._batches.size if self._is_full else most

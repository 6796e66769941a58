"""Commits the effects of one step: the step is sealed first and finished last, and each effect is
idempotent.

A commit has four stages:

1. the inbox is sealed: it notes the tuples that the step covers, and the new snapshot, if any;
2. the states of stateful bolts are written;
3. the trees are updated in the ledger, and emissions are appended to the inboxes of their targets,
   in parts if they are large;
4. the step is finished: the inbox forgets its tuples. This happens when the task takes new tuples,
   begins with its state, or commits the next step, whichever comes first.

If all stores are on one server, stages 1 to 3 are one call. It ends at the first part that does not
go well, such as an append to a full inbox; the rest is then made in calls of its own.

If an attempt dies after stage 1, the next attempt repeats the step over exactly the same tuples.
The seal has a digest of all effects. A repeat with a different digest sends nothing: some effects
of the first attempt may have left and others not, so every message that either attempt touched is
failed, and its broker delivers it again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha1
from typing import Any

import numpy as np

from tiercel.acker.effects import Effect, on_one_server, perform_all, perform_in_turn
from tiercel.acker.inbox.chunk import Appended, Parcel, full_among, next_parcels, parcels_left
from tiercel.acker.inbox.contract import (
    Covered,
    Inbox,
    Inboxes,
    Sender,
    StaleAttemptError,
    append_again,
)
from tiercel.acker.ledger import Applied, Ledger, Reply, Token, conflict_of, total
from tiercel.spark_jobs.errors import LostStepsError
from tiercel.spark_jobs.reasons import FORKED
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.running.step import Done
from tiercel.spark_jobs.state.store import StateTurn

log = logging.getLogger(__name__)

# Bounds on the time between two attempts to append to a full inbox.
_SHORTEST_WAIT_S = 0.002
_LONGEST_WAIT_S = 0.05


class Committer:
    """Commits the steps of one attempt at one bolt task. One thread only."""

    def __init__(  # noqa: PLR0913 - the stores that it joins
        self,
        *,
        run: str,
        sender: Sender,
        inbox: Inbox,
        inboxes: Inboxes,
        ledger: Ledger | None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """``wait`` is called between two attempts to append to a full inbox.

        It raises StaleAttemptError when the run is over.
        """
        self._run = run
        self._sender = sender
        self._inbox = inbox
        self._inboxes = inboxes
        self._ledger = ledger
        self._wait = wait
        # Number of the last step, until it is finished.
        self.unfinished: int | None = None
        # Time of the last commit's round trips.
        self.took_ns = 0
        # True if an earlier attempt at the last step did different work: its messages are failed.
        self.conflicted = False

    def commit(self, covered: Covered, done: Done, states: TaskStates | None) -> Reply | None:
        """Commit the effects of a step; return the ledger's reply, None if it was not called.

        Repeat the call if a store could not be reached. Raises StaleAttemptError, LostStepsError.
        """
        if FORKED.is_set():
            # The bolt has returned in both processes, and the step is its parent's.
            os._exit(0)
        step, work, finishing = covered.step, _work_of(done), self._finishing()
        writing = self._writing(done, states)
        self.conflicted = writing is None or (bool(covered.work) and covered.work != work)
        applying: Sequence[Effect[Reply]] = ()
        parcels: Sequence[Parcel] = ()
        if not self.conflicted:
            parcels = next_parcels(done.parcels) if len(done.parcels) > 1 else done.parcels
            applying = self._applying(step, done)
        seal = self._inbox.seal(replace(covered, work=covered.work or work), done.snapshot)
        appends = self._inboxes.append(self._run, self._sender, step, parcels) if parcels else []
        # Seal before anything else: otherwise a successor could put other tuples into the step.
        first = [*finishing, seal, *(writing or ())]
        rest: list[Effect[Any]] = [*applying, *appends]
        together = on_one_server([*first, *rest])
        began = time.perf_counter_ns()
        replies = perform_in_turn([*first, *rest] if together else first)
        _check(replies[: len(first)])
        made = replies[len(first) :] if together else perform_all(rest)
        if len(made) < len(applying):
            made += perform_all(applying[len(made) :])
        self.took_ns = time.perf_counter_ns() - began
        if states is not None:
            states.written()
        reply = self._concluded(step, done, made[: len(applying)], parcels, made[len(applying) :])
        # Not before all output has left: a repeat of this call finishes the step noted here first.
        self.unfinished = step
        return reply

    def _concluded(
        self,
        step: int,
        done: Done,
        replies: Sequence[Reply],
        parcels: Sequence[Parcel],
        verdicts: Sequence[Appended],
    ) -> Reply | None:
        """Append the parcels that were not appended yet, and fail messages in conflict."""
        if self.conflicted:
            self._conflict(done)
            return None
        reply = self._total(replies)
        if self._appended(step, done.parcels, parcels[: len(verdicts)], verdicts):
            self._conflict(done)
        return reply

    @staticmethod
    def _writing(done: Done, states: TaskStates | None) -> Sequence[Effect[bool]] | None:
        """Prepare the writes of states; None if an earlier attempt wrote others in this step."""
        if states is None or not states.begun:
            return ()
        return states.writing(done.updates, done.failures)

    def begin(self, turn: Effect[StateTurn]) -> StateTurn:
        """Begin a turn of a state. Raises StaleAttemptError and the errors of the turn."""
        # The last step must be finished first: once a state has begun a step, it refuses the step
        # before, which a successor may have to repeat.
        finishing = self._finishing()
        replies = perform_in_turn([*finishing, turn])
        _check(replies[: len(finishing)])
        self.unfinished = None
        begun: StateTurn = replies[-1]
        return begun

    def finish(self) -> None:
        """Finish the last step: the inbox forgets its tuples. Idempotent."""
        _check(perform_all(self._finishing()))
        self.unfinished = None

    def _finishing(self) -> list[Effect[bool]]:
        return [] if self.unfinished is None else [self._inbox.finish(self.unfinished)]

    def _applying(self, step: int, done: Done) -> Sequence[Effect[Reply]]:
        if self._ledger is None or not (len(done.updates.roots) or done.failures):
            return ()
        token = Token(
            run=self._run, task=self._sender.task, step=step, attempt=self._sender.attempt
        )
        return self._ledger.applying(token, done.updates, done.failures)

    def _appended(
        self,
        step: int,
        left: Sequence[Parcel],
        sent: Sequence[Parcel],
        verdicts: Sequence[Appended],
    ) -> bool:
        """Append the parcels that are left, waiting while an inbox is full. Return True if another
        attempt at this step did different work.
        """
        different = False
        pause_s = _SHORTEST_WAIT_S
        full: set[int] = set()
        while True:
            if Appended.STALE in verdicts:
                raise StaleAttemptError(
                    f"task {self._sender.task}: a newer attempt or run has taken over"
                )
            different |= Appended.DIFFERENT in verdicts
            if len(sent) == len(left) and Appended.FULL not in verdicts:
                return different
            left = parcels_left(left, sent, verdicts)
            if Appended.FULL in verdicts:
                full |= full_among(sent, verdicts)
                self._wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_WAIT_S)
            else:
                pause_s = _SHORTEST_WAIT_S
            sent = next_parcels(left)
            verdicts = append_again(self._inboxes, self._run, self._sender, step, sent, full)

    def _total(self, replies: Sequence[Reply]) -> Reply | None:
        if not replies or self._ledger is None:
            return None
        reply = replies[0] if len(replies) == 1 else total(replies)
        self.conflicted |= reply.applied is Applied.CONFLICTING
        if reply.applied is Applied.STALE:
            task = self._sender.task
            if self._ledger.fence(self._run, task, self._sender.attempt):
                # No attempt is newer than this one, so the ledger knows a later step.
                raise LostStepsError(f"the ledger knows a later step of task {task} than its inbox")
            raise StaleAttemptError(f"task {task}: the ledger knows a newer attempt or run")
        return reply

    def _conflict(self, done: Done) -> None:
        """Fail the messages of all input and held tuples: an earlier attempt at the step did
        different work, and some of its effects stay.
        """
        self.conflicted = True
        roots = np.unique(done.lineage.roots).tolist()
        if self._ledger is not None and roots:
            self._ledger.fail([conflict_of(root) for root in roots])


def _work_of(done: Done) -> str:
    """Return the digest of all effects of a step; equal for equal work."""
    # As in ``Parcel``.
    content = sha1(done.updates.roots.tobytes(), usedforsecurity=False)
    content.update(done.updates.xors.tobytes())
    # Reasons are left out: they may contain addresses and times that differ between attempts.
    content.update(b"".join(b"%d " % failure.root for failure in done.failures))
    content.update(b"".join(b"|%d %b" % (one.target, one.digest.encode()) for one in done.parcels))
    return content.hexdigest()[:16]


def _check(replies: Sequence[bool]) -> None:
    if not all(replies):
        raise StaleAttemptError("a newer attempt or run has taken over the inbox")

"""One attempt at a bolt task: take tuples, execute, commit, until the run is over.

All bolts share the class ``Attempt``. Two objects differ between bolts (kind.py):

* the ``BoltKind`` chooses the input of each step (most bolts: ``Plain``), and has the ``Execution``
  that runs the bolt over it (step.py);
* an ``Order``, only for bolts with ``ordered_by`` or ``Retry``, decides which tuples have to wait.

Read ``Attempt.run`` first, then ``turn`` and ``_commit``.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar, cast

from tiercel.acker.effects import perform_all
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.inbox.contract import (
    Claims,
    Covered,
    Inboxes,
    OpenWindows,
    Sender,
    StaleAttemptError,
    StepOrderError,
)
from tiercel.acker.ledger import Failure, Ledger
from tiercel.queues import outage
from tiercel.spark_jobs.errors import TurnAgainError
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import (
    Backlog,
    Share,
    TickClock,
    all_but,
    first_of,
    reader_of,
)
from tiercel.spark_jobs.running.chain import chain_at, tasks_in_row
from tiercel.spark_jobs.running.commit import Committer
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.kind import BoltKind, HoldingOrder, Order, StepInput
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.running.step import Done, Execution, Slices, Step, StepSetup, TimeLimit
from tiercel.spark_jobs.running.suspicion import RetakenInput, place
from tiercel.spark_jobs.suspects.watchdog import WatchedStep
from tiercel.spark_jobs.topology.graph import Topology, behind, line_at

log = logging.getLogger(__name__)

TAKEN_BYTES = 8 * 1024 * 1024
LONGEST_WAIT_S = 5.0
# If a call lasts longer, the tuples that wait behind it go to other tasks.
_LASTS_S = 0.04
_RETRY_S = 0.1
# Interval at which the task of a paused bolt looks whether the bolt was resumed.
_PAUSED_S = 0.2
_GONE = "its task began anew while the bolt, or a thread of it, had the tuple"
T = TypeVar("T")


class Attempt:
    """One attempt at one bolt task. Other threads call only ``wake``, ``leave``, ``give_back``."""

    doing: Step | None = None
    windows: OpenWindows | None = None  # of a windowed bolt, at most some seconds old
    # Input of the current step.
    _shares: Sequence[Share] = ()
    # True if a reply was lost, so that tuples may or may not have been given back.
    _unsure = False
    # True if the task is asked to leave.
    _leaves = False

    def __init__(
        self,
        around: Around,
        task: int,
        stop: threading.Event,
        kind: Callable[[Attempt, bytes | None], BoltKind],
        order: Order | None = None,
    ) -> None:
        """Take over the task by fencing off older attempts, in the task's own inbox last.

        ``kind`` is called once, with this attempt and its snapshot. Raises StaleAttemptError.
        """
        self.around = around
        self.stop = stop
        self.task = task
        self._claims_from = line_at(around.topology, task)
        self._read = reader_of(around.topology, task, self._claims_from)
        self.sender = fenced(around.run, around.topology, task, around.inboxes, around.ledger)
        self._inbox = around.inboxes.open(around.run, task, self.sender.attempt, self._claims_from)
        opened = self._inbox.opened
        self._committer = Committer(
            run=around.run, sender=self.sender, inbox=self._inbox, inboxes=around.inboxes,
            ledger=around.ledger, wait=self._wait_for_room,
        )  # fmt: skip
        self._step = opened.step
        # Most bolts have none of these: ticks, retaken input, an order, a chain.
        self.ticks = _tick_clock(around, task, opened.ticks)
        self.retaken = around.suspicion.of(task, opened) if opened.taken else None
        self._order = order
        snapshot = opened.snapshot if order is None else order.opened(opened.snapshot)
        self.backlog = Backlog(opened.done) if order is None else order.backlog(opened.done)
        self.kind = kind(self, snapshot)
        self._slices = self.kind.slices
        self._gives_back = self.kind.gives_back and self._claims_from is not None
        self._setup = _setup_of(around, task, self.kind)
        new = self._setup.execution.states
        self._states = None if new is None else new(around.state, around.topology)
        self._chain = chain_at(around, self._setup, self._slices, self._show)
        self._tell_raised = around.counting.noting(task, self._setup.component)

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock of the next action that needs no new input; None if none."""
        return self.kind.next_at

    @property
    def waiting(self) -> int:
        """Number of failed tuples that wait for their next attempt. Any thread."""
        return 0 if self._order is None else self._order.waiting

    def wake(self) -> None:
        """End a wait, so that the attempt notices a stop or an answer."""
        self._inbox.wake()
        self.kind.wake()

    def leave(self) -> None:
        """Take no tuples, give back tuples that have not begun, and end once no other is left."""
        self._leaves = True
        self.wake()

    def executing(self) -> WatchedStep | None:
        """Return the step or call that is being executed; for the watchdog's thread."""
        step, call = self.doing, self.kind.under_way()
        works = step is not None and step.at_work
        return step if works and (call is None or call.waits) else call

    def give_back(self) -> None:
        """Give claimed tuples that have not begun back to the line if a call of the bolt is long;
        the step then ends after that call. Another thread calls this several times per second.
        """
        if not self._gives_back or not self._call_lasts():
            return
        slices = self._slices
        with slices.between:
            # Set before the check: a bolt that does not see it yet has already counted its tuple.
            slices.asked_back = True
            if self._call_lasts():
                self._give_back()
            slices.asked_back = slices.gave_back

    def _call_lasts(self) -> bool:
        slices = self._slices
        waits_s = self.around.clock() - slices.asked_at
        return self.doing is not None and slices.begun > 0 and waits_s > _LASTS_S

    def _give_back(self) -> None:
        rests = self.backlog.rests(first_of(self._shares, self._slices.begun))
        if not rests:
            return
        unfinished = self._committer.unfinished
        first = [] if unfinished is None else [self._inbox.finish(unfinished)]
        self._slices.gave_back = True
        try:
            done = perform_all([*first, self._inbox.give_back(rests)])
        except (RedisUnavailableError, StepOrderError):
            self._unsure = True
            return
        # Otherwise nothing was given back: another attempt has the task, which the commit detects.
        if all(done):
            self.backlog.gone(rests)

    def run(self) -> bool:
        """Work until ``stop``; return False if a new attempt must take over the task."""
        try:
            self.recover()
            while not self.stop.is_set():
                paused = self.around.paused
                if self._leaves:
                    if self._has_left():
                        break
                elif paused and self._setup.component in paused:
                    self._stand_still()
                else:
                    self.turn(self._longest_wait())
            self.patiently(self._committer.finish)
        except RedisUnavailableError as error:
            outage.REDIS.begins(("task", self.task), error)
        except (TurnAgainError, StepOrderError) as error:
            log.info("task %d begins again: %s", self.task, error, extra={"event": "step_again"})
        else:
            return True
        self.stop.wait(random.uniform(0.5, 1.0) * _RETRY_S)  # jitter: other tasks retry too
        return False

    def recover(self) -> None:
        """Repeat the step that an earlier attempt sealed but did not finish, if any.

        Call it before the first ``turn``.
        """
        self._fail_lost()
        sealed = self._inbox.opened.sealed
        if sealed is not None:
            self._repeat(sealed)

    def turn(self, wait_s: float = 0.0) -> bool:
        """Take tuples, or wait for them, and execute at most one step.

        Return True if there was a step.
        """
        copy = self._setup.copy
        if copy.lost:
            self._fail_lost()
        taken = self.kind.takes(0.0 if copy.answers.waiting else wait_s)
        if taken is None:
            return False
        self._commit(taken, None)
        return True

    def _stand_still(self) -> None:
        """Commit what the paused bolt has begun, and take nothing new: no tuple, tick or retry."""
        self.finish()
        ended = self.kind.ends(_PAUSED_S)
        if ended is not None:
            self._commit(ended, None)

    def _has_left(self) -> bool:
        """Commit tuples that have begun; once none is left, give the others back to the line; True.

        Tuples that may have killed a process stay: the task's next attempt searches for them.
        """
        self._stand_still()
        if self.kind.at_work:
            return False
        if self._claims_from is not None and self.retaken is None:
            self.finish()
            rests = self.backlog.rests(())
            if rests:
                # False: another attempt has the task and its tuples.
                self.patiently(self._inbox.give_back(rests).perform)
                self.backlog.gone(rests)
        return True

    def close(self) -> None:
        """Clean up the bolt and close the inbox."""
        self.kind.close()
        if self._chain is not None:
            self._chain.close()
        self._inbox.close()

    # -- for the kind ----------------------------------------------------------------------------

    def fetch(self, wanted: int, wait_s: float, claims: Claims, *, begins: bool = False) -> None:
        """Take more tuples from the inbox, claim up to ``claims`` from the line, and finish the
        last step, since the next commit may be long in coming. ``begins``: also begin the next turn
        of the bolt's state, whose step follows at once.
        """
        wait = timedelta(seconds=wait_s)
        finishing = self._committer.unfinished
        ahead = self._states.ahead(self.task, self._step + 1) if begins and self._states else None
        entries = self.patiently(
            lambda: self._inbox.take(wanted, TAKEN_BYTES, wait, finishing, claims, then=ahead)
        )
        self._committer.unfinished = None
        strange = self.backlog.add(entries, self._read) if entries else ()
        if strange and (ledger := self.around.ledger) is not None:
            self.patiently(lambda: ledger.release(strange))

    def recall(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the marks with these keys of all earlier steps. Raises as a step with a state."""
        states = cast("TaskStates", self._states).at(self._step + 1, self._committer.begin)
        return states.opened(self.task).recall(keys)

    def first(self, most: int) -> StepInput | None:
        """Return the first ``most`` waiting tuples and the tick that is due; None if there is
        nothing to do.
        """
        ticks = self.due()
        if not most and not ticks and not self._setup.copy.answers.waiting:
            return None
        retaken, backlog = self.retaken, self.backlog
        shares = backlog.first(most) if retaken is None else retaken.shares(backlog, most)
        return StepInput(shares=shares, ticks=ticks)

    def answered(self, wait_s: float) -> StepInput | None:
        """Return the input of a step that only commits answers of threads; None if there are none
        after ``wait_s``.
        """
        answers = self._setup.copy.answers
        if not answers.waiting:
            self.stop.wait(wait_s)
        return StepInput() if answers.waiting else None

    def due(self) -> list[Chunk]:
        """Return the tick that is due, or an empty list."""
        return [] if self.ticks is None else self.ticks.due(self.around.clock())

    def finish(self) -> None:
        """Finish the last step, for a kind that will not ``fetch`` soon."""
        if self._committer.unfinished is not None:
            self.patiently(self._committer.finish)

    # -- one step --------------------------------------------------------------------------------

    def _longest_wait(self) -> float:
        # While a call executes a tick, the tick stays due until its step commits.
        if self.ticks is None or self.ticks.under_way:
            return LONGEST_WAIT_S
        return max(0.0, min(LONGEST_WAIT_S, self.ticks.next_at - self.around.clock()))

    def _repeat(self, sealed: Covered) -> None:
        """Repeat a step that an earlier attempt sealed, with exactly its tuples and its tick."""
        opened = self._inbox.opened
        log.info(
            "task %d repeats step %d", self.task, sealed.step, extra={"event": "step_repeated"}
        )
        if self._order is not None and self._order.holds:
            self._repeat_held(cast("HoldingOrder", self._order), sealed)
            return
        # In the order of the inbox, as before: in another order, the step could do different work.
        entries = self._inbox.read(sorted([*sealed.whole, *sealed.part], key=place))
        backlog, self.backlog = self.backlog, Backlog(opened.done)
        self.backlog.add(entries, self._read)
        ticks: list[Chunk] = []
        if self.ticks is not None and sealed.ticks > opened.ticks:
            ticks = [self.ticks.tick()]
        self._commit(StepInput(shares=self.backlog.exactly(sealed), ticks=ticks), sealed)
        self.patiently(self._committer.finish)
        backlog.cover(sealed)
        self.backlog = backlog

    def _repeat_held(self, order: HoldingOrder, sealed: Covered) -> None:
        """Repeat a sealed step that used tuples which it did not cover."""
        self._commit(order.repeat(sealed, self.fetch), sealed)
        self.patiently(self._committer.finish)
        order.repeated(sealed)

    def _commit(self, taken: StepInput, sealed: Covered | None) -> None:
        """Execute and commit one step."""
        began_ns = time.perf_counter_ns()
        number = sealed.step if sealed else self._step + 1
        if self._chain is not None and sealed is None:
            taken = self._chain.limited(taken)
        shares = taken.shares
        states = self._states and self._states.at(number, self._committer.begin)
        step, done = self._executed(taken, number, sealed, states)
        if self._unsure:
            raise TurnAgainError("tuples that should go back to the line may have gone")
        executed_at = self.around.clock()
        if self._order is not None:
            done = self._order.noted(shares, done)
        ticks = 0 if self.ticks is None else self.ticks.count + done.ticked
        executed = first_of(shares, done.executed)
        if done.again:
            executed = all_but(executed, done.again)
        covered = sealed or self.backlog.take_out(executed, number, ticks)
        if self._chain is not None and sealed is None:
            covered = replace(covered, inner=self._chain.executed)
        # A step may also only free room in the inbox for tuples that it holds. A sealed step may
        # have had only answers of threads, which are lost with the process.
        some = covered.whole or covered.part or covered.tuples or done.ticked or done.again
        commits = bool(sealed or some or done.record.answered)
        if commits:
            self._leave(covered, done, states, began_ns)
            if self._order is not None and self._committer.conflicted:
                self._reseal(covered, self._order.conflicted(shares, done))
        self._slices.ended(done.executed, done.offered, executed_at, committed=commits)
        done.record.let_go()
        self._step = number
        if done.ticked and self.ticks is not None:
            self.ticks.ticked(self.around.clock())
        if log.isEnabledFor(logging.DEBUG):
            step.log("6. task %d of %s committed its step with tuples of root %d")

    def _executed(
        self, taken: StepInput, number: int, sealed: Covered | None, states: TaskStates | None
    ) -> tuple[Step, Done]:
        """Create a step from the input, and run the bolt over it."""
        slices = self._slices
        slices.begin()
        step = Step(self._setup, number, taken.shares, taken.ticks, states)
        step.record.tell_resets = partial(self._reset_meanwhile, step)
        step.record.tell_raised = self._tell_raised
        if (order := self._order) is not None:
            step.record.retry = order.retry
            step.retry_in_place(partial(order.again, taken.shares, repeated=sealed is not None))
        if self._chain is not None:
            may_kill = self.retaken is not None and not self.retaken.is_over
            self._chain.begin(step, number, sealed, may_kill=may_kill)
        debugging = log.isEnabledFor(logging.DEBUG)
        if debugging:
            step.log("4. task %d of %s took tuples of root %d")
        self._shares = taken.shares
        self.doing = step
        if self._setup.execution.at_once and not sealed and not taken.together:
            slices.begun = sum([len(share.rows) for share in taken.shares])
        asked = None if sealed else slices
        executing = self.around.counting.executing
        executing[step.record] = self.task
        try:
            if (retaken := self.retaken) is None:
                done = step.execute(None if taken.together else asked)
            else:
                done = self._execute_retaken(retaken, taken, step, asked)
        finally:
            executing.pop(step.record, None)
            # Wait until ``give_back`` is done with the step.
            with slices.between:
                self.doing = None
                slices.asked_back = False
        if debugging:
            step.log("5. task %d of %s executed tuples of root %d")
        return step, done

    def _show(self, step: Step | None) -> None:
        """Have the watchdog see the step of this bolt or of one behind it; None: no step."""
        self.doing = step

    def _execute_retaken(
        self, retaken: RetakenInput, taken: StepInput, step: Step, slices: TimeLimit | None
    ) -> Done:
        """Execute retaken input, which may have killed a process."""
        if taken.together:
            return retaken.execute_together(taken.shares, step)
        done = retaken.execute(taken.shares, step, slices)
        if retaken.is_over:
            self.retaken = None
        return done

    def _leave(
        self, covered: Covered, done: Done, states: TaskStates | None, began_ns: int
    ) -> None:
        """Commit the step, waiting while Redis is down.

        A step with a state does not wait: a new attempt repeats it.
        """
        if (ledger := self.around.ledger) is not None and done.record.resets:
            roots = [root for row in done.record.resets for root in done.roots(row)]
            self.patiently(lambda: ledger.reset_timeout(roots))
        if states is not None and states.begun:
            reply = self._committer.commit(covered, done, states)
        else:
            reply = self.patiently(lambda: self._committer.commit(covered, done, states))
        if done.snapshot is not None:
            self._setup.copy.kept()
        counting, commit_ns = self.around.counting, self._committer.took_ns
        step_ns = time.perf_counter_ns() - began_ns
        counting.step(self.task, done, reply, step_ns=step_ns, commit_ns=commit_ns)
        if self._chain is not None:
            self._chain.committed(counting)

    def _reset_meanwhile(self, step: Step, rows: Sequence[int]) -> bool:
        """Restart timeouts in the ledger during a step; return False to retry at its end."""
        if self.around.ledger is not None:
            try:
                self.around.ledger.reset_timeout([root for row in rows for root in step.roots(row)])
            except RedisUnavailableError:
                return False
        return True

    def _reseal(self, covered: Covered, snapshot: bytes | None) -> None:
        """Seal a step again before it is finished, since a finished step is not repeated."""
        if snapshot is not None and not self.patiently(self._inbox.seal(covered, snapshot).perform):
            raise StaleAttemptError("a newer attempt or run has taken over the inbox")

    def wake_for_answer(self) -> None:
        """Wake the attempt, because a thread has acked or failed a tuple. Any thread."""
        # If Redis is down, the wake-up is lost, but the wait ends by itself within seconds.
        with suppress(RedisUnavailableError):
            self.wake()

    def _fail_lost(self) -> None:
        """Fail the messages of tuples that an earlier copy, or a thread of it, held."""
        copy = self._setup.copy
        ledger = self.around.ledger
        failures = [
            Failure(root=root, component=self._setup.component, task=self.task, reason=_GONE)
            for root in copy.lost
        ]
        if ledger is not None and failures:
            self.patiently(lambda: ledger.fail(failures))
        copy.lost = []

    # -- waits -----------------------------------------------------------------------------------

    def _wait_for_room(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise StaleAttemptError("the run is over")

    def patiently(self, call: Callable[[], T]) -> T:
        """Retry the call until Redis answers. Raises StaleAttemptError if the run ends first."""
        try:
            return call()
        except RedisUnavailableError as error:
            outage.REDIS.begins(("task", self.task), error)
        while not self.stop.wait(_RETRY_S):
            try:
                found = call()
            except RedisUnavailableError as error:
                outage.REDIS.begins(("task", self.task), error)
            else:
                outage.REDIS.ends(("task", self.task))
                return found
        raise StaleAttemptError("the run is over")


def fenced(
    run: str, topology: Topology, task: int, inboxes: Inboxes, ledger: Ledger | None
) -> Sender:
    """Draw a new attempt's number, and fence off older attempts. Raises StaleAttemptError."""
    sender = Sender(task=task, attempt=inboxes.draw(run, task))
    senders = [task, *tasks_in_row(topology, task)]
    targets = {target for one in senders for target in behind(topology, one)}
    inboxes.fence(run, sender, sorted(targets))
    if ledger is not None and not ledger.fence(run, task, sender.attempt):
        raise StaleAttemptError(f"task {task}: the ledger knows a newer attempt or run")
    return sender


def _setup_of(around: Around, task: int, kind: BoltKind) -> StepSetup:
    beside = around.beside(task)
    return StepSetup(around.run, around.topology, task, kind.execution, kind.copy, beside)


def _tick_clock(around: Around, task: int, count: int) -> TickClock | None:
    period_s = around.ticks.get(around.topology.component_of(task))
    if period_s is None:
        return None
    clock = TickClock(task, period_s, around.clock())
    clock.count = count
    return clock


class Plain:
    """``BoltKind`` of a bolt that executes tuples one by one, or all tuples of a step at once.

    It takes more tuples if too few wait in the backlog, and waits if none do.
    """

    gives_back = True
    next_at = None
    at_work = False

    def __init__(self, attempt: Attempt, snapshot: bytes | None, execution: Execution) -> None:
        self._attempt = attempt
        self.execution = attempt.around.traced(execution, attempt.task)
        self.copy = copy_for(attempt, snapshot)
        self.slices = Slices(attempt.around.clock, arrow=execution.at_once)

    def takes(self, wait_s: float) -> StepInput | None:
        attempt = self._attempt
        backlog = attempt.backlog
        slices = self.slices
        waiting = backlog.tuples
        wanted = slices.wanted(waiting) if waiting else 2 * slices.size
        if wanted:
            if waiting or backlog.must_leave:
                wait_s = 0.0
            elif wait_s:
                attempt.stop.wait(slices.rest_s())
            claims = slices.claimable - waiting
            more = slices.worthwhile + min(0, claims)
            attempt.fetch(wanted, wait_s, Claims(max(0, claims), max(0, more)), begins=True)
            if waiting and backlog.tuples == waiting:
                slices.found_none()
        return attempt.first(slices.size if backlog.tuples or backlog.must_leave else 0)

    def ends(self, wait_s: float) -> StepInput | None:
        return self._attempt.answered(wait_s)

    def under_way(self) -> None:
        """Return None: no call is under way between two steps."""

    def wake(self) -> None:
        """Do nothing: the attempt waits only in its inbox, and wakes that itself."""

    def close(self) -> None:
        self.copy.drop()


def copy_for(attempt: Attempt, snapshot: bytes | None) -> WorkingCopy:
    """Return a copy of the bolt whose attributes outlive the process."""
    around = attempt.around
    return WorkingCopy(
        around.topology, attempt.task, around.config, around.key, snapshot, attempt.wake_for_answer
    )

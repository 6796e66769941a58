"""One attempt at a bolt task: take what is there, execute, commit, until the run is over.

The order of things is in ``Attempt.run``; read it first.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

from tiercel.acker.effects import perform_all
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.inbox.contract import Inbox
from tiercel.acker.inbox.records import Claims, Covered, Sender, StaleAttemptError, StepOrderError
from tiercel.acker.ledger import Failure, Ledger
from tiercel.spark_jobs.errors import TurnAgainError
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.arrivals import arrival
from tiercel.spark_jobs.running.backlog import Backlog, Share, first_of
from tiercel.spark_jobs.running.commit import Committer
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.slices import Slices
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.running.step import Done, May, Step, StepOf, StepSetup
from tiercel.spark_jobs.running.suspicion import place
from tiercel.spark_jobs.running.ticks import TickClock
from tiercel.spark_jobs.suspects.watchdog import WatchedStep
from tiercel.spark_jobs.topology.placement import behind, cycle_of, line_at

log = logging.getLogger(__name__)

_TAKEN_BYTES = 8 * 1024 * 1024
LONGEST_WAIT_S = 5.0
# A call that lasts longer keeps nothing waiting that others can execute.
_LASTS_S = 0.04
_RETRY_S = 0.1
_THREAD_ENDED = "its task was started again while a thread of the bolt had the tuple"
T = TypeVar("T")


class Attempt:
    """One attempt at one bolt task. One thread only, but ``wake`` and ``give_back``."""

    doing: Step | None = None
    # The input of the step.
    _shares: Sequence[Share] = ()
    # Number of its tuples that the bolt has begun; None: all must be executed.
    _begun: int | None = None
    # True while another thread may give tuples back: the bolt then waits between two tuples.
    _asked_back = False
    _gave_back = False
    # True if it is not known whether what should go back went.
    _unsure = False

    def __init__(self, around: Around, task: int, stop: threading.Event) -> None:
        """Take the task over: fence the older attempts off, at home last.

        Raises StaleAttemptError.
        """
        self._around = around
        self._stop = stop
        self.task = task
        topology = around.topology
        run = around.run
        self.sender = Sender(task=task, attempt=around.inboxes.draw(run, task))
        around.inboxes.fence(run, self.sender, sorted(behind(topology, task)))
        if around.ledger is not None and not around.ledger.fence(run, task, self.sender.attempt):
            raise StaleAttemptError(f"task {task}: the ledger knows a newer attempt or run")
        self._inbox = self._opened_inbox()
        opened = self._inbox.opened
        copy = self._working_copy(opened.snapshot)
        self._setup = StepSetup(topology, task, copy, cycle_of(topology, task), around.beside(task))
        self._committer = Committer(
            run=run, sender=self.sender, inbox=self._inbox, inboxes=around.inboxes,
            ledger=around.ledger, wait=self._wait_for_room,
        )  # fmt: skip
        self._resets = _TimeoutResets(around.ledger)
        self._backlog = self._new_backlog(opened.done)
        self._step = opened.step
        self._slices = Slices(around.clock, arrow=self._setup.arrow)
        # Most bolts have none of these three: no ticks, no input that ended a process, no state.
        self._ticks: TickClock | None = None
        if (tick_s := around.tick_s(task)) is not None:
            self._ticks = TickClock(task, tick_s, around.clock())
            self._ticks.count = opened.ticks
        self._retaken = around.suspicion.of(task, opened.taken) if opened.taken else None
        # Held while tuples are given back, and where a step begins and ends.
        self._between = threading.Lock()

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock at which it goes on although nothing comes."""
        return None

    def wake(self) -> None:
        """Make it look whether it should stop."""
        self._inbox.wake()

    def executing(self) -> WatchedStep | None:
        """The step whose tuples are being executed; for the watchdog's thread."""
        step = self.doing
        return step if step is not None and step.at_work else None

    def give_back(self) -> None:
        """Give back what was claimed and not begun where one call of the bolt lasts; the step then
        ends with it. Called by another thread, several times per second.
        """
        if self._claims_from is None or not self._call_lasts():
            return
        # First: a bolt that does not see it has counted its tuple as begun already.
        self._asked_back = True
        with self._between:
            if self._call_lasts():
                self._give_back()
            self._asked_back = False

    def _call_lasts(self) -> bool:
        waits_s = self._around.clock() - self._slices.asked_at
        return self.doing is not None and bool(self._begun) and waits_s > _LASTS_S

    def _give_back(self) -> None:
        rests = self._backlog.rests(first_of(self._shares, self._begun or 0))
        if not rests:
            return
        unfinished = self._committer.unfinished
        first = [] if unfinished is None else [self._inbox.finish(unfinished)]
        self._gave_back = True
        try:
            done = perform_all([*first, self._inbox.give_back(rests)])
        except (RedisUnavailableError, StepOrderError):
            self._unsure = True
            return
        # Else nothing has moved, and the commit finds out who has the task now.
        if all(done):
            self._backlog.gone(rests)

    def run(self) -> bool:
        """Work until ``stop``; False: a new attempt must repeat what was sealed."""
        try:
            self.recover()
            while not self._stop.is_set():
                self.turn(self._longest_wait())
            self._patiently(self._committer.finish)
        except RedisUnavailableError as error:
            log.warning("task %d begins again: %s", self.task, error, extra={"event": "redis_away"})
        except (TurnAgainError, StepOrderError) as error:
            log.info("task %d begins again: %s", self.task, error, extra={"event": "step_again"})
        else:
            return True
        self._stop.wait(random.uniform(0.5, 1.0) * _RETRY_S)  # apart from others that do so
        return False

    def recover(self) -> None:
        """Repeat the step that an earlier attempt had sealed, if there is one.

        Call it before the first ``turn``.
        """
        self._fail_lost()
        sealed = self._inbox.opened.sealed
        if sealed is not None:
            self._repeat(sealed)

    def turn(self, wait_s: float = 0.0) -> bool:
        """Take what is there, or wait for it, and do at most one step.

        Returns whether there was one.
        """
        copy = self._setup.copy
        if copy.lost:
            self._fail_lost()
        self._take(0.0 if copy.answers.waiting else wait_s)
        most = self._most() if self._backlog else 0
        ticks = self._ticks.due(self._around.clock()) if self._ticks is not None else []
        if not most and not ticks and not copy.answers.waiting:
            return False
        self._work(most, ticks)
        return True

    def close(self) -> None:
        """Clean the bolt up."""
        self._setup.copy.drop()
        self._inbox.close()

    # -- one step --------------------------------------------------------------------------------

    def _take(self, wait_s: float) -> None:
        """Take more where too little waits, and wait for it where nothing does."""
        wanted = self._slices.wanted(self._backlog.tuples)
        if not wanted:
            return
        if self._backlog:
            wait_s = 0.0
        elif wait_s:
            self._stop.wait(self._slices.rest_s())
        claims = self._slices.claimable - self._backlog.tuples
        more = self._slices.worthwhile + min(0, claims)
        self._fetch(wanted, wait_s, Claims(max(0, claims), max(0, more)))

    def _most(self) -> int:
        """Return how many of the tuples that wait the next step may take; 0: none yet."""
        return self._slices.size

    def _fetch(self, wanted: int, wait_s: float, claims: Claims) -> None:
        # Release what the last step covered, now at the latest: nothing else may follow soon.
        wait = timedelta(seconds=wait_s)
        finishing = self._committer.unfinished
        entries = self._patiently(
            lambda: self._inbox.take(wanted, _TAKEN_BYTES, wait, finishing, claims)
        )
        self._committer.unfinished = None
        self._slices.took(len(entries))
        strange = self._backlog.add(entries, self._read)
        ledger = self._around.ledger
        if strange and ledger is not None:
            self._patiently(lambda: ledger.release(strange))

    def _read(self, payload: bytes) -> tuple[Chunk | None, list[int]]:
        return arrival(payload, self._around.topology, self.task, self._claims_from)

    def _longest_wait(self) -> float:
        now = self._around.clock()
        next_at = self._ticks.next_at if self._ticks is not None else None
        wait_s = LONGEST_WAIT_S if next_at is None else min(LONGEST_WAIT_S, next_at - now)
        return max(0.0, wait_s)

    def _work(self, most: int, ticks: Sequence[Chunk]) -> None:
        """Execute so much of what waits, and commit it."""
        self._slices.begin()
        if self._retaken is None:
            shares = self._backlog.first(most)
        else:
            shares = self._retaken.shares(self._backlog, most)
        self._commit(shares, ticks, None)

    def _repeat(self, sealed: Covered) -> None:
        """Do a step again that an earlier attempt had sealed: just its tuples, and its tick."""
        opened = self._inbox.opened
        log.info(
            "task %d repeats step %d", self.task, sealed.step, extra={"event": "step_repeated"}
        )
        # In another order than the first time it would do other work.
        entries = self._inbox.read(sorted([*sealed.whole, *sealed.part], key=place))
        backlog, self._backlog = self._backlog, Backlog(opened.done)
        self._backlog.add(entries, self._read)
        ticks: list[Chunk] = []
        if self._ticks is not None and sealed.ticks > opened.ticks:
            ticks = [self._ticks.tick()]
        self._commit(self._backlog.exactly(sealed), ticks, sealed)
        self._patiently(self._committer.finish)
        backlog.cover(sealed)
        self._backlog = backlog

    def _commit(
        self, shares: Sequence[Share], ticks: Sequence[Chunk], sealed: Covered | None
    ) -> None:
        """One step, from its input to the end of its commit."""
        began_ns = time.perf_counter_ns()
        number = sealed.step if sealed else self._step + 1
        around = self._around
        states = self._states(number)
        of = StepOf(run=around.run, task=self.task, number=number)
        step = Step(self._setup, of, shares, ticks, states)
        step.record.tell_resets = partial(self._resets.meanwhile, step)
        step.record.tell_raised = around.counting.noting(self.task, self._setup.component)
        self._begin(step, shares, cut=sealed is None)
        try:
            with around.counting.executing(self.task, self._setup.component):
                may = self._slices.may if self._claims_from is None else self._may
                done = self._execute(shares, step, None if sealed else may)
        finally:
            with self._between:
                self.doing = None
        if self._unsure:
            raise TurnAgainError("tuples that should go back to the line may have gone")
        self._slices.ended(done.executed, done.offered)
        covered = sealed or self._covered(number, shares, done)
        # A sealed step may have had answers alone, which are gone with the process.
        if sealed or covered.whole or covered.part or done.ticked or done.record.answered:
            self._leave(covered, done, states, began_ns)
            self._slices.committed()
        done.record.let_go()
        self._step = number
        if done.ticked and self._ticks is not None:
            self._ticks.ticked(around.clock())

    def _begin(self, step: Step, shares: Sequence[Share], *, cut: bool) -> None:
        """Note the step that is executed; one that is not ``cut`` keeps all its tuples."""
        with self._between:
            self.doing = step
            self._shares = shares
            self._gave_back = False
            self._begun = None
            if cut:
                at_once = self._setup.arrow or self._setup.batch
                self._begun = sum(len(share.rows) for share in shares) if at_once else 0

    def _may(self) -> bool:
        """Return True if the step goes on with another tuple, and count that as begun."""
        begun = self._begun = (self._begun or 0) + 1
        if self._asked_back:
            with self._between:
                pass
        goes_on = self._slices.may() and not self._gave_back
        if not goes_on and begun > 1:
            self._begun = begun - 1
        return goes_on

    def _states(self, number: int) -> TaskStates | None:
        if not self._setup.stateful:
            return None
        around = self._around
        return TaskStates(around.state, around.topology, number, self._committer.begin)

    def _execute(self, shares: Sequence[Share], step: Step, may: May | None) -> Done:
        if self._retaken is None:
            return step.execute(may)
        done = self._retaken.execute(shares, step, may)
        if self._retaken.is_over:
            self._retaken = None
        return done

    def _covered(self, number: int, shares: Sequence[Share], done: Done) -> Covered:
        ticks = 0 if self._ticks is None else self._ticks.count + done.ticked
        return self._backlog.take_out(first_of(shares, done.executed), number, ticks)

    def _leave(
        self, covered: Covered, done: Done, states: TaskStates | None, began_ns: int
    ) -> None:
        """Commit, however long Redis is away.

        A step with a state begins again with a new attempt instead.
        """
        if done.record.resets:
            self._resets.after(done)
        if states is not None and states.begun:
            reply = self._committer.commit(covered, done, states)
        else:
            reply = self._patiently(lambda: self._committer.commit(covered, done, states))
        if done.snapshot is not None:
            self._setup.copy.kept()
        step_ns = time.perf_counter_ns() - began_ns
        self._around.counting.step(
            self.task, done, reply, step_ns=step_ns, commit_ns=self._committer.took_ns
        )

    def _opened_inbox(self) -> Inbox:
        around = self._around
        self._claims_from = line = line_at(around.topology, self.task)
        return around.inboxes.open(around.run, self.task, self.sender.attempt, line)

    def _new_backlog(self, done: Mapping[str, bytes]) -> Backlog:
        return Backlog(done)

    def _working_copy(self, snapshot: bytes | None) -> WorkingCopy:
        around = self._around
        return WorkingCopy(
            around.topology, self.task, around.config, around.key, snapshot, self._wake_for_answer
        )

    def _wake_for_answer(self) -> None:
        # A server that is away wakes nothing: the wait for it ends by itself within seconds.
        with suppress(RedisUnavailableError):
            self.wake()

    def _fail_lost(self) -> None:
        """Fail the messages of tuples that only threads held, when these threads' copy ended."""
        copy = self._setup.copy
        ledger = self._around.ledger
        failures = [
            Failure(
                root=root, component=self._setup.component, task=self.task, reason=_THREAD_ENDED
            )
            for root in copy.lost
        ]
        if ledger is not None and failures:
            self._patiently(lambda: ledger.fail(failures))
        copy.lost = []

    # -- around it -------------------------------------------------------------------------------

    def _wait_for_room(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StaleAttemptError("the run is over")

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call until Redis answers. Raises StaleAttemptError when the run ends before."""
        said = False
        while True:
            try:
                return call()
            except RedisUnavailableError as error:
                if not said:
                    log.warning(
                        "task %d waits: %s", self.task, error, extra={"event": "redis_away"}
                    )
                said = True
            if self._stop.wait(_RETRY_S):
                raise StaleAttemptError("the run is over")


class _TimeoutResets:
    """Tells the ledger of timeouts that the bolt of one task has begun anew."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger

    def after(self, done: Done) -> None:
        """Tell of the tuples of a step that is about to leave."""
        if self._ledger is not None:
            rows = done.record.resets
            self._ledger.reset_timeout([root for row in rows for root in done.roots(row)])

    def meanwhile(self, step: Step, rows: Sequence[int]) -> bool:
        """Tell of these tuples while the bolt works; False: tell it when the step ends."""
        if self._ledger is not None:
            try:
                self._ledger.reset_timeout([root for row in rows for root in step.roots(row)])
            except RedisUnavailableError:
                return False
        return True

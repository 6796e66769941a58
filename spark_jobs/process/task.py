"""One bolt task at work, in a thread of its own: attempt after attempt, until the run is over."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from tiercel.acker.errors import BadChunkError, RedisUnavailableError
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contract import Covered, Inbox, Sender, StaleAttemptError
from tiercel.spark_jobs.errors import LostStepsError, StaleTurnError
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.logs.speaking import speak_as
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.suspects.watchdog import WatchedStep

# More steps than a server can have lost. Numbers of steps stay below 2**53.
_PASSED_OVER = 2**32
log = logging.getLogger(__name__)

_RETRY_S = 1.0


class BoltTask:
    """Runs one bolt task in a thread of its own. ``stop`` and ``attempt`` are for other threads."""

    def __init__(self, around: Around, task: int) -> None:
        self.task = task
        self._around = around
        self._stop = threading.Event()
        self._current: Attempt | None = None
        # Reason for its end, if that was not ``stop``.
        self.error: BaseException | None = None

    @property
    def attempt(self) -> int | None:
        """The number of the attempt that is at work."""
        return self._current.sender.attempt if self._current else None

    def executing(self) -> WatchedStep | None:
        """The step whose tuples are being executed; for the watchdog's thread."""
        current = self._current
        return current.executing() if current is not None else None

    def give_back(self) -> None:
        """Give back to the line what waits behind a call that lasts."""
        current = self._current
        if current is not None:
            current.give_back()

    def stop(self) -> None:
        """End after the step that is at work."""
        self._stop.set()
        current = self._current
        if current is not None:
            # A server that is away wakes nothing: the wait for it ends by itself within seconds.
            with suppress(RedisUnavailableError):
                current.wake()

    def run(self) -> None:
        """Work until ``stop``, or until ``error`` says who has taken over."""
        speak_as(self._around.topology.component_of(self.task), self.task)
        try:
            while not self._stop.is_set():
                self._current = self._begun()
                if self._current is None or self._work(self._current):
                    return
                self._current.close()
        except BaseException as error:
            self.error = error
            if not isinstance(error, StaleAttemptError):
                log.exception("task %d ended", self.task, extra={"event": "bolt_task_failed"})
        finally:
            if self._current is not None:
                self._current.close()

    def _work(self, attempt: Attempt) -> bool:
        """As ``Attempt.run``; also False where the attempt is the newest, and has lost steps."""
        try:
            return attempt.run()
        except (LostStepsError, StaleTurnError):
            if not pass_over(self._around, attempt.sender):
                raise
            return False

    def _begun(self) -> Attempt | None:
        """A new attempt, when Redis answers; None after ``stop``."""
        while not self._stop.is_set():
            try:
                return attempt_at(self._around, self.task, self._stop)
            except RedisUnavailableError as error:
                log.warning("task %d waits: %s", self.task, error, extra={"event": "redis_away"})
                self._stop.wait(_RETRY_S)
        return None


def pass_over(around: Around, sender: Sender) -> bool:
    """Go on with a step whose number no store has heard of: the next attempt begins there.

    False: the attempt is not the newest one, or Redis does not answer. A step that is found sealed
    is not repeated, for all its effects may have left; its messages are released.
    """
    ledger = around.ledger
    try:
        if ledger is not None and not ledger.fence(around.run, sender.task, sender.attempt):
            return False
        inbox = around.inboxes.open(around.run, sender.task, sender.attempt)
        last = inbox.opened.sealed or Covered(step=inbox.opened.step, ticks=inbox.opened.ticks)
        if ledger is not None:
            ledger.release(_roots_of(inbox, last))
        # A step of nothing: it is there for its number.
        ahead = Covered(step=last.step + _PASSED_OVER, ticks=last.ticks)
        for effect in (inbox.finish(last.step), inbox.seal(ahead), inbox.finish(ahead.step)):
            if not effect.perform():
                return False
    except (RedisUnavailableError, StaleAttemptError):
        return False
    log.warning(
        "the inbox of task %d has lost its last steps, as when its server fails over to a replica "
        "that lagged: the task goes on behind them, and what they did may be done twice",
        sender.task,
        extra={"event": "steps_lost"},
    )
    return True


def _roots_of(inbox: Inbox, covered: Covered) -> list[int]:
    """The roots of the entries that a step covers, all or in part."""
    roots: set[int] = set()
    for entry in inbox.read([*covered.whole, *covered.part]):
        with suppress(BadChunkError):
            roots.update(decode(entry.payload).lineage.roots.tolist())
    return sorted(roots)

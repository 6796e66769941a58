"""One Spark task: runs its share of the bolt tasks to the run's end, a thread each, attempt after
attempt.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tiercel.acker.errors import AckerError, BadChunkError, RedisUnavailableError
from tiercel.acker.ids import EXTRA
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contract import (
    NOTHING_HELD,
    Covered,
    Holdings,
    Inbox,
    Sender,
    StaleAttemptError,
)
from tiercel.acker.redis.errors import REFUSALS
from tiercel.queues import outage
from tiercel.spark_jobs.errors import LostStepsError, StaleTurnError
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.logs.relay import speak_as
from tiercel.spark_jobs.reasons import lacks_memory, reason_of
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.backlog import waiting_roots
from tiercel.spark_jobs.suspects.watchdog import Doing, Lookout, Watchdog, WatchedStep
from tiercel.spark_jobs.whereabouts import of_this_process

# More steps than a server can have lost. Step numbers stay below 2**53.
_PASSED_OVER = 2**32
_RETRY_S = 1.0


# hiredis raises a RuntimeError with this text in place of a MemoryError.
_HIREDIS_LACKS_MEMORY = "Failed to serialize the command"


class BoltTask:
    """Runs one bolt task in a thread of its own. ``stop``, ``leave`` and ``attempt`` are for other
    threads.
    """

    def __init__(self, around: Around, task: int) -> None:
        self.task = task
        self._around = around
        self._stop = threading.Event()
        self._leaves = False
        self._current: Attempt | None = None
        # The error that ended it; None after ``stop``.
        self.error: BaseException | None = None

    @property
    def attempt(self) -> int | None:
        """The number of the current attempt."""
        return self._current.sender.attempt if self._current else None

    @property
    def held(self) -> Holdings:
        """Failed tuples that wait for their next attempt, and open windows."""
        current = self._current
        if current is None:
            return NOTHING_HELD
        return Holdings(retrying=current.waiting, windows=current.windows)

    def executing(self) -> WatchedStep | None:
        """The step whose tuples are being executed; for the watchdog's thread."""
        current = self._current
        return current.executing() if current is not None else None

    def give_back(self) -> None:
        """Return the tuples that wait behind a long call to their line."""
        current = self._current
        if current is not None:
            current.give_back()

    def stop(self) -> None:
        """End after the current step."""
        self._stop.set()
        self.wake()

    def leave(self) -> None:
        """Take no tuples, give back tuples that have not begun, and end once no other is left."""
        # Set first: an attempt that begins now sees it.
        self._leaves = True
        current = self._current
        if current is not None:
            with suppress(RedisUnavailableError):
                current.leave()

    def wake(self) -> None:
        """End a wait for tuples."""
        current = self._current
        if current is not None:
            # Waking needs the server. If it is down, the task's wait for it ends within seconds.
            with suppress(RedisUnavailableError):
                current.wake()

    def run(self) -> None:
        """Work until ``stop``, or until an error, which ``error`` then holds."""
        speak_as(self._around.topology.component_of(self.task), self.task)
        try:
            while not self._stop.is_set():
                self._current = self._begun()
                if self._current is not None and self._leaves:
                    self._current.leave()
                if self._current is None or self._work(self._current):
                    return
                self._current.close()
        except AckerError as error:
            self.error = error
            log.error("task %d ended: %s", self.task, error, extra={"event": "bolt_task_refused"})
        except BaseException as error:
            self.error = error
            if lacks_memory(error) or _HIREDIS_LACKS_MEMORY in f"{error}":
                # Not in a call of the bolt: its attributes are pickled, or a step is sent.
                log.warning(
                    "%s[%d] had no memory left to commit a step: if it occurs again and again, "
                    "name caches in transient, or raise spark.executor.pyspark.memory",
                    self._around.topology.component_of(self.task), self.task,
                    extra={"event": "out_of_memory"},
                )  # fmt: skip
            elif not isinstance(error, StaleAttemptError):
                log.exception("task %d ended", self.task, extra={"event": "bolt_task_failed"})
        finally:
            outage.REDIS.leaves(("task", self.task))
            if self._current is not None:
                self._current.close()

    def _work(self, attempt: Attempt) -> bool:
        """Like ``Attempt.run``; also False if the newest attempt has lost steps and goes on."""
        try:
            return attempt.run()
        except (LostStepsError, StaleTurnError):
            if not pass_over(self._around, attempt.sender):
                raise
            return False

    def _begun(self) -> Attempt | None:
        """Begin a new attempt once Redis answers; None after ``stop``."""
        while not self._stop.is_set():
            try:
                attempt = attempt_at(self._around, self.task, self._stop)
            except RedisUnavailableError as error:
                outage.REDIS.begins(("task", self.task), error)
                self._stop.wait(_RETRY_S)
            else:
                outage.REDIS.ends(("task", self.task))
                return attempt
        return None


def pass_over(around: Around, sender: Sender) -> bool:
    """Skip ahead to a step number that no store has seen: the next attempt begins there.

    False: the attempt is not the newest one, or Redis does not answer. A sealed step is not
    repeated, because all its effects may have left; its messages are released.
    """
    ledger = around.ledger
    try:
        if ledger is not None and not ledger.fence(around.run, sender.task, sender.attempt):
            return False
        inbox = around.inboxes.open(around.run, sender.task, sender.attempt)
        last = inbox.opened.sealed or Covered(step=inbox.opened.step, ticks=inbox.opened.ticks)
        if ledger is not None:
            ledger.release(_roots_of(inbox, last))
        # An empty step, only for its number.
        ahead = Covered(step=last.step + _PASSED_OVER, ticks=last.ticks)
        for effect in (inbox.finish(last.step), inbox.seal(ahead), inbox.finish(ahead.step)):
            if not effect.perform():
                return False
    except (RedisUnavailableError, StaleAttemptError):
        return False
    log.warning(
        "the inbox of task %d has lost its last steps, probably in a failover to a lagging "
        "replica: the task skips them, and their work may be done twice",
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


log = logging.getLogger(__name__)

_BEAT_S = 1.0
# Time between two checks for long calls.
_LOOK_S = 0.05
# Time for the last steps when the run ends.
_PATIENCE_S = 10.0
# Time for the last steps when the process ends because a bolt hangs.
_PARTING_S = 1.0
# A process in which less can be allocated has no memory left.
_SPARE_BYTES = 64 << 20

Watching = Callable[[Sequence[Lookout], Callable[[int], None]], Watchdog]


class LostTaskError(RuntimeError):
    """A bolt task ended before its run: Spark restarts the Spark task."""


class Host:
    """Keeps the bolt tasks of one process at work."""

    def __init__(
        self, around: Around, tasks: Sequence[int], watching: Watching | None = None
    ) -> None:
        """``watching`` makes the watchdog that looks for hanging bolts."""
        self._around = around
        self._tasks = [BoltTask(around, task) for task in tasks]
        self._threads = [
            threading.Thread(target=task.run, name=f"task {task.task}", daemon=True)
            for task in self._tasks
        ]
        self._watching = watching or partial(Watchdog, around.longest_call)
        self._lookouts: Sequence[Lookout] = ()
        # The call of each task at the last beat, and when it was first seen.
        self._calls: dict[int, tuple[Doing, float]] = {}
        self._place = of_this_process(around.topology.code).packed()
        self._stop = threading.Event()
        self._over = False
        self._leaves = False
        self._asks_memory = False
        self._out_of_memory = False

    def stop(self) -> None:
        """Thread-safe: the run is over."""
        self._over = True
        self._stop.set()

    def run(self) -> None:
        """Work until the run is over.

        Raises LostTaskError when a task cannot go on in this process.
        """
        REFUSALS.begin()  # the driver has worked with the same addresses
        outage.name_process(f"process {os.getpid()} of the bolts")
        suspicion = self._around.suspicion
        self._lookouts = lookouts = [
            suspicion.lookout(
                task.task,
                task.executing,
                self._waiting(task),
                self._around.call_limit(task.task),
            )
            for task in self._tasks
        ]
        with suppress(RedisUnavailableError):
            self._around.look_for_pauses()
        with self._watching(lookouts, self._part).looking():
            for thread in self._threads:
                thread.start()
            try:
                beat_at = time.monotonic() + _BEAT_S
                lost = 0
                while not self._stop.wait(_LOOK_S):
                    self._look()
                    # A beat finds out whether the run is over, or this process must end.
                    before, lost = lost, sum(task.error is not None for task in self._tasks)
                    if lost > before or time.monotonic() >= beat_at:
                        beat_at = time.monotonic() + _BEAT_S
                        self._beat()
                    if self._leaves and not any(thread.is_alive() for thread in self._threads):
                        break
            finally:
                self._end(self._tasks, _PATIENCE_S)
        if not self._over:
            self._check_over()

    def _check_over(self) -> None:
        """Raise LostTaskError if Spark must start the tasks again: the run is not over."""
        lost = [
            f"{task.task}: {reason_of(task.error)}"
            for task in self._tasks
            if task.error is not None
        ]
        if lost:
            raise LostTaskError(f"bolt tasks ended: {', '.join(lost)}")
        if self._out_of_memory:
            raise LostTaskError("a bolt had no memory left: the bolt tasks go on in a new process")
        # The run goes on without extra tasks, and not without others.
        if self._leaves and any(task.task < EXTRA for task in self._tasks):
            raise LostTaskError("the executor is asked to leave: the bolt tasks go on elsewhere")

    def _waiting(self, task: BoltTask) -> Callable[[], set[int]]:
        around = self._around
        return partial(waiting_roots, around.inboxes, around.run, around.topology, task.task)

    def _part(self, hanging: int) -> None:
        """Have the other tasks commit their executed tuples before the process ends."""
        self._end([task for task in self._tasks if task.task != hanging], _PARTING_S)

    def _end(self, tasks: Sequence[BoltTask], patience_s: float) -> None:
        for task in tasks:
            task.stop()
        until = time.monotonic() + patience_s
        for task, thread in zip(self._tasks, self._threads, strict=True):
            if task in tasks:
                thread.join(max(0.0, until - time.monotonic()))
        self._flush()

    def _beat(self) -> None:
        """Send the tasks' heartbeats and the counts, and check whether the run goes on."""
        around = self._around
        attempts = {task.task: task.attempt for task in self._tasks if task.attempt is not None}
        try:
            held = {task.task: task.held for task in self._tasks}
            heard = around.inboxes.beat(around.run, attempts, self._doing_s(), self._place, held)
            self._look_for_pauses()
        except RedisUnavailableError as error:
            log.debug("%s", error, extra={"event": "redis_away"})
            return
        if any(task.error is not None for task in self._tasks):
            self._over = self._run_is_over()
            self._stop.set()
        for task in self._tasks:
            if task.task in heard.stale:
                task.stop()
                task.error = task.error or StaleAttemptError(
                    "another attempt or run has taken over"
                )
        if heard.leaving:
            self._leave(heard.leaving)
        # Separate from the beat: a server that is out of memory refuses counts but not heartbeats.
        with suppress(RedisUnavailableError):
            around.counting.flush()

    def _leave(self, leaving: Sequence[int]) -> None:
        if not self._leaves:
            log.info(
                "the executor is asked to leave: its bolt tasks finish their current tuples",
                extra={"event": "bolt_tasks_leave"},
            )
        self._leaves = True
        for task in self._tasks:
            if task.task in leaving:
                task.leave()

    def _look(self) -> None:
        """Have tuples behind a long call given back; leave a process that has no memory left."""
        for task in self._tasks:
            task.give_back()
        # Memory is tested one look after the error: by then, a tuple that needed too much memory
        # has released it.
        asks, self._asks_memory = self._asks_memory, self._around.counting.tracebacks.take_lack()
        if not asks or self._leaves or _can_allocate(_SPARE_BYTES):
            return
        # In the process of a bolt that leaks, every tuple from now on would fail, until all
        # messages of the queue are dead letters.
        log.warning(
            "a bolt had no memory left: the bolt tasks of this process finish their current tuples "
            "and go on in a new one; if it occurs again and again, the bolt leaks, or "
            "spark.executor.pyspark.memory is too small",
            extra={"event": "out_of_memory"},
        )
        self._leaves = self._out_of_memory = True
        for task in self._tasks:
            task.leave()

    def _look_for_pauses(self) -> None:
        """Read which bolts are paused; their tasks must not wait for tuples, and so take them."""
        around = self._around
        before = set(around.paused)
        around.look_for_pauses()
        for task in self._tasks:
            if around.topology.component_of(task.task) in around.paused - before:
                task.wake()

    def _doing_s(self) -> dict[int, float]:
        """Seconds for which tasks have been in the same call of their bolt, or in the oldest of
        many, as seen by beats.
        """
        now = time.monotonic()
        before = self._calls
        self._calls = {}
        for lookout in self._lookouts:
            doing = lookout.doing()
            if doing is not None:
                last, since = before.get(doing.task, (None, now))
                if last is not None and last.waits:
                    # Seen now is a step, or a younger call that blocks the event loop.
                    doing = last
                self._calls[doing.task] = (doing, since if doing.same(last) else now)
        return {task: now - since for task, (_, since) in self._calls.items() if since < now}

    def _run_is_over(self) -> bool:
        """Return True if no task may begin a new attempt."""
        try:
            self._around.inboxes.draw(self._around.run, self._tasks[0].task)
        except StaleAttemptError:
            return True
        except RedisUnavailableError:
            return False
        return False

    def _flush(self) -> None:
        try:
            self._around.counting.flush()
        except RedisUnavailableError as error:
            log.warning(
                "could not send the last counts, they are lost: %s",
                error,
                extra={"event": "counts_lost"},
            )


def _can_allocate(size: int) -> bool:
    try:
        bytearray(size)  # of untouched pages, which cost nothing
    except MemoryError:
        return False
    return True

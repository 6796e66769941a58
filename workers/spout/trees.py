"""The tuple trees of one spout task: tracks trees in flight, and ends them on an outcome, a timeout
or a loss.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ledger import Failure, Ledger, Outcomes
from tiercel.acker.metrics.contract import Tally, bucket_of
from tiercel.queues.nouns import counted
from tiercel.queues.spout import MsgId, Spout, overrides_last, takes_reason
from tiercel.spark_jobs.bolts.verdicts import is_given_back
from tiercel.spark_jobs.reasons import raised
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.outbox import Attendance, forget

log = logging.getLogger(__name__)
# Characters of a message's id or queue that are shown.
_LONGEST_NAME = 200
# Renewals of the ledger's entries per message timeout while a bolt is paused.
_RENEWALS = 2


class OutcomeTeller:
    """Calls ``ack``, ``fail``, ``reject``, ``retry_later`` and ``release`` of one spout, on the
    spout's thread.
    """

    def __init__(self, spout: Spout) -> None:
        self.spout = spout
        self._acks_many = overrides_last(spout, "ack_all", "ack")
        self._gives_reason = takes_reason(spout)

    def ack(self, msg_ids: Sequence[MsgId]) -> None:
        """Ack messages: their trees are complete, or not tracked."""
        if self._acks_many:
            self.spout.ack_all(msg_ids)
        else:
            for msg_id in msg_ids:
                self.spout.ack(msg_id)

    def fail(self, msg_id: MsgId, reason: str) -> None:
        """Fail a message: its tree failed or timed out."""
        if self._gives_reason:
            self.spout.fail(msg_id, reason)
        else:
            self.spout.fail(msg_id)

    def reject(self, msg_id: MsgId, reason: str) -> None:
        """Reject a message that, according to a bolt, can never be processed."""
        self.spout.reject(msg_id, reason)

    def retry_later(self, msg_id: MsgId, seconds: float, reason: str, *, blame: bool) -> None:
        """Have a message emitted again after this time, as a bolt requested."""
        self.spout.retry_later(msg_id, seconds, reason, blame=blame)

    def describe(self, msg_id: MsgId) -> Mapping[str, str]:
        """Return what operators know a message by."""
        try:
            found = dict(self.spout.describe(msg_id))
        except raised():  # a failure must be reported although the spout's code is bad
            found = {}
        found.setdefault("message_id", str(msg_id))
        return {name: str(value)[:_LONGEST_NAME] for name, value in found.items()}

    def release(self, msg_id: MsgId) -> None:
        """Have a message emitted again without counting a failure."""
        self.spout.release(msg_id)


class InFlight(NamedTuple):
    """One emitted spout tuple."""

    msg_id: MsgId
    # Seconds on the caller's monotonic clock.
    emitted_at: float
    # True if the tuple waited for a rate limit.
    waited: bool = False


class Pending:
    """Roots in flight, earliest deadline first. One thread; times are seconds on one monotonic
    clock.

    Storm rotates two buckets, so a tuple times out after one to two timeouts. Here all tuples have
    the same timeout, so a dict's insertion order is the order of the deadlines. A timeout is never
    early, and late by at most one call of ``expire``.

    Tuples that wait for a rate limit are in flight too, but kept in a separate dict: their age says
    nothing about how long the work takes, so ``oldest_s`` excludes them.
    """

    def __init__(self, timeout: timedelta | None) -> None:
        """If ``timeout`` is None, nothing expires."""
        self._timeout = timeout.total_seconds() if timeout else None
        # By root: the message id, the emission time, and the start of the timeout. ``waiting`` has
        # the tuples that wait for a rate limit, ``working`` all others; only ``working`` counts
        # towards the bound.
        self.working: dict[int, tuple[MsgId, float, float]] = {}
        # Emission times of working tuples whose timeout was restarted: the oldest may be here.
        self._reset: dict[int, float] = {}
        self.waiting: dict[int, tuple[MsgId, float, float]] = {}

    def __len__(self) -> int:
        return len(self.working) + len(self.waiting)

    def __contains__(self, root: int) -> bool:
        return root in self.working or root in self.waiting

    def add_all(self, emitted: Sequence[tuple[int, MsgId]], now: float) -> None:
        """Add tuples, as (root, message id), that were emitted at ``now``."""
        self.working.update([(root, (msg_id, now, now)) for root, msg_id in emitted])

    def pop(self, root: int) -> InFlight | None:
        """Remove and return a tuple; None if it is no longer in flight."""
        found = self.working.pop(root, None)
        waited = found is None
        if found is None:
            found = self.waiting.pop(root, None)
        if self._reset:
            self._reset.pop(root, None)
        return InFlight(*found[:2], waited=waited) if found else None

    def pop_all(self, roots: Sequence[int]) -> tuple[list[MsgId], list[float], list[InFlight]]:
        """Remove the tuples that are still in flight. Return the message ids and emission times of
        the working tuples, and the tuples that waited for a rate limit.
        """
        found = [
            entry for entry in [self.working.pop(root, None) for root in roots] if entry is not None
        ]
        waited: list[InFlight] = []
        if self.waiting:
            taken = [self.waiting.pop(root, None) for root in roots]
            waited = [InFlight(*entry[:2], waited=True) for entry in taken if entry is not None]
        if self._reset:
            for root in roots:
                self._reset.pop(root, None)
        return [entry[0] for entry in found], [entry[1] for entry in found], waited

    def wait(self, root: int, now: float) -> float | None:
        """Note that a tuple waits for a rate limit, and restart its timeout.

        Return its emission time if it was in ``working``, else None.
        """
        known = self.waiting.pop(root, None)
        found = known or self.working.pop(root, None)
        if found is None:
            return None
        msg_id, emitted_at, _ = found
        self.waiting[root] = (msg_id, emitted_at, now)
        self._reset.pop(root, None)
        return None if known else emitted_at

    def reset(self, root: int, now: float) -> bool:
        """Restart the timeout of a tuple; return False if the tuple is no longer in flight."""
        if root in self.waiting:
            self.wait(root, now)
            return True
        found = self.working.pop(root, None)
        if found is None:
            return False
        msg_id, emitted_at, _ = found
        self.working[root] = (msg_id, emitted_at, now)
        self._reset[root] = emitted_at
        return True

    def hold(self, now: float, held_s: float) -> None:
        """Restart all timeouts, and leave out the last ``held_s`` seconds from all ages."""
        for group in (self.working, self.waiting):
            for root, (msg_id, emitted_at, _) in group.items():
                group[root] = (msg_id, min(now, emitted_at + held_s), now)
        self._reset = {root: min(now, at + held_s) for root, at in self._reset.items()}

    def expire(self, now: float) -> list[tuple[int, InFlight]]:
        """Remove and return all tuples that have timed out."""
        if self._timeout is None:
            return []
        both = [
            *self._expired(self.working, now, waited=False),
            *self._expired(self.waiting, now, waited=True),
        ]
        for root, _ in both:
            self.pop(root)
        return both

    @property
    def next_timeout(self) -> float | None:
        """Time at which the next tuple times out; None if no tuple will time out."""
        firsts = [next(iter(group.values()), None) for group in (self.working, self.waiting)]
        began = [first[2] for first in firsts if first is not None]
        return None if not began or self._timeout is None else min(began) + self._timeout

    def oldest_s(self, now: float) -> float:
        """Return the age of the oldest working tuple in seconds; 0 if there is none."""
        first = next(iter(self.working.values()), None)
        return 0.0 if first is None else max(0.0, now - min([first[1], *self._reset.values()]))

    @property
    def roots(self) -> list[int]:
        """The roots of all tuples in flight."""
        return [*self.working, *self.waiting]

    def _expired(
        self, group: dict[int, tuple[MsgId, float, float]], now: float, *, waited: bool
    ) -> list[tuple[int, InFlight]]:
        expired: list[tuple[int, InFlight]] = []
        for root, (msg_id, emitted_at, since) in group.items():
            if self._timeout is None or now < since + self._timeout:
                break
            expired.append((root, InFlight(msg_id, emitted_at, waited)))
        return expired


class Trees:
    """Tells the spout the outcome of each message that it emitted with an id. Runs on the spout's
    thread.
    """

    def __init__(
        self,
        teller: OutcomeTeller,
        ledger: Ledger,
        tally: Tally,
        admission: Admission,
        message_timeout: timedelta | None,
    ) -> None:
        self._teller = teller
        self._ledger = ledger
        self._tally = tally
        self._admission = admission
        # Trees in flight, except trees of the batch that is being sent. Read-only for callers.
        self.pending = Pending(message_timeout)
        # True while no tree times out: a bolt that trees may wait for is paused, or the run's
        # processes are starting.
        self.held = self.paused = False
        self._held_until = 0.0
        self._redis_away = False
        self._renew_at = 0.0
        timeout = message_timeout or timedelta.max
        self._renew_s = timeout.total_seconds() / _RENEWALS
        # Outcomes of roots whose batch is still being sent: the append took effect, but its reply
        # was lost.
        self._early: list[Outcomes] = []

    # -- batches -----------------------------------------------------------------------------------

    def sent(self, emitted: Sequence[tuple[int, MsgId]], now: float) -> None:
        """Add tuples, as (root, message id), that are in flight from now on."""
        self.pending.add_all(emitted, now)
        for outcomes in self._take_early():
            self.take_outcomes(outcomes, now)

    def not_sent(self) -> None:
        """Drop the early outcomes of a refused batch: its tuples are emitted again."""
        self._take_early()

    def split_early(self, emitted: Sequence[tuple[int, MsgId]], now: float) -> set[int]:
        """Tell the spout the early outcomes of a batch that is still being sent at shutdown; return
        the roots that have an outcome.
        """
        known = {root for outcomes in self._early for root in _roots_of(outcomes)}
        self.pending.add_all([(root, msg_id) for root, msg_id in emitted if root in known], now)
        for outcomes in self._take_early():
            self.take_outcomes(outcomes, now)
        return known

    def _take_early(self) -> list[Outcomes]:
        early, self._early = self._early, []
        return early

    # -- outcomes ----------------------------------------------------------------------------------

    def take_outcomes(self, outcomes: Outcomes, now: float, sending: Sequence[int] = ()) -> int:
        """Tell the spout the outcomes; return the number of roots that were no longer in flight.

        Outcomes of roots in ``sending`` are kept until ``sent``. The caller handles a lost ledger.
        """
        if sending:
            outcomes = self._put_aside(outcomes, set(sending))
        # Steps 7 and 8 of docs/one-message.md.
        if log.isEnabledFor(logging.DEBUG):
            for root in outcomes.acked:
                log.debug(
                    "7. the tree of root %d is complete", root, extra={"event": "message_step"}
                )
        late = self._ack(outcomes.acked, now) if outcomes.acked else 0
        for failure in outcomes.failed:
            in_flight = self.pending.pop(failure.root)
            if in_flight is None:
                late += 1
            else:
                self._fail(in_flight, failure, now)
        if outcomes.released:
            late += self._release(outcomes.released)
        for root in outcomes.reset:
            self.pending.reset(root, now)
        if outcomes.waiting:
            self._set_apart(outcomes.waiting, now)
        return late

    def expire(self, now: float, attendance: Attendance) -> bool:
        """Fail the tuples that have timed out; release them if no driver runs or Redis is away,
        because they are not to blame. Return False if no tuple has timed out.

        The timeouts begin anew when Redis is back: until then, no bolt could commit.
        """
        if self._redis_away and attendance is not Attendance.REDIS_AWAY:
            self.pending.hold(now, 0.0)
            self._keep()
        self._redis_away = attendance is Attendance.REDIS_AWAY
        blame = attendance is Attendance.DRIVER
        expired = self.pending.expire(now)
        if not expired:
            return False
        for _, in_flight in expired:
            if blame:
                self._tally.add("timeout")
                if not in_flight.waited:
                    self._admission.timed_out(in_flight.emitted_at, now)
                self._count_failure(in_flight, "timeout")
                self._teller.fail(in_flight.msg_id, "timeout")
            else:
                self._give_back(in_flight)
        forget(self._ledger, [root for root, _ in expired])
        return True

    def hold(self, now: float, *, paused: bool, starting: bool) -> None:
        """Let no tree time out while a bolt is ``paused``, or the processes of its run are
        ``starting``; called about once per second.

        The timeouts begin anew when the bolts go on, and no latency includes a pause.
        """
        held = paused or starting
        if not (held or self.held):
            return
        if self.held:
            self.pending.hold(now, now - self._held_until if self.paused else 0.0)
        if self.paused and not paused:
            self._admission.go_on(now)
        if not (self.held and held) or now >= self._renew_at:
            # The ledger keeps entries only for a few message timeouts.
            self._renew_at = now + self._renew_s
            self._keep()
        self.held, self.paused = held, paused
        self._held_until = now

    def _keep(self) -> None:
        try:
            self._ledger.reset_timeout(self.pending.roots)
        except RedisUnavailableError as error:
            self._renew_at = float("-inf")
            log.debug("entries were not renewed: %s", error, extra={"event": "redis_away"})

    def give_back_all(self, why: str) -> None:
        """Release all messages in flight."""
        roots = self.pending.roots
        if roots:
            log.warning(
                "%s: giving %s back",
                why,
                counted(len(roots), "message"),
                extra={"event": "messages_released"},
            )
        self._release(roots)
        forget(self._ledger, roots)

    def tell_acked(self, msg_ids: Sequence[MsgId]) -> None:
        """Ack messages: their trees are complete, or not tracked."""
        if log.isEnabledFor(logging.DEBUG):
            for msg_id in msg_ids:
                log.debug("8. the spout acks message %s", msg_id, extra={"event": "message_step"})
        self._teller.ack(msg_ids)

    def _put_aside(self, outcomes: Outcomes, mine: set[int]) -> Outcomes:
        """Keep the outcomes of the batch that is being sent; return all others."""
        early = _part(outcomes, lambda root: root in mine)
        if not early:
            return outcomes
        self._early.append(early)
        return _part(outcomes, lambda root: root not in mine)

    def _ack(self, roots: Sequence[int], now: float) -> int:
        """Ack complete trees; return the number of roots that were no longer in flight."""
        msg_ids, emitted_at, waited = self.pending.pop_all(roots)
        told = [*msg_ids, *(each.msg_id for each in waited)]
        if told:
            self.tell_acked(told)
        # Group by emission time: tuples that were sent together have the same latency.
        completions = Counter(emitted_at)
        total_s = sum([(now - then) * count for then, count in completions.items()])
        self._admission.completed(len(msg_ids), total_s, now)
        if waited:
            completions.update([each.emitted_at for each in waited])
            total_s += sum([now - each.emitted_at for each in waited])
        if told:
            counts = Counter(acked=len(told), complete_us=round(total_s * 1e6))
            for then, count in completions.items():
                counts[bucket_of((now - then) * 1000)] += count
            self._tally.add_all(counts)
        return len(roots) - len(told)

    def _set_apart(self, roots: Sequence[int], now: float) -> None:
        """Move trees that wait for a rate limit out of the bound. Each counts as a completion: the
        bolts before the limited one are done with it.
        """
        found = [self.pending.wait(root, now) for root in roots]
        took_s = [now - emitted_at for emitted_at in found if emitted_at is not None]
        self._admission.completed(len(took_s), sum(took_s), now)

    def _fail(self, in_flight: InFlight, failure: Failure, now: float) -> None:
        """Fail, reject or postpone a message, as the bolt requested."""
        reason = _said(failure)
        by = {"bolt": failure.component, "task": failure.task}
        if failure.blame:
            self._count_failure(in_flight, reason, by)
        else:
            self._tally.add("released")
            if not is_given_back(failure.reason):
                self._report(in_flight, reason, by, failed=False)
        if not in_flight.waited:
            self._admission.failed(now - in_flight.emitted_at, now)
        told = self._teller
        if failure.reject:
            told.reject(in_flight.msg_id, reason)
        elif failure.retry_after_s is not None:
            told.retry_later(in_flight.msg_id, failure.retry_after_s, reason, blame=failure.blame)
        else:
            told.fail(in_flight.msg_id, reason)

    def _count_failure(
        self, in_flight: InFlight, reason: str, by: Mapping[str, object] | None = None
    ) -> None:
        self._tally.add("failed")
        self._report(in_flight, reason, by or {}, failed=True)

    def _report(
        self, in_flight: InFlight, reason: str, by: Mapping[str, object], *, failed: bool
    ) -> None:
        """Show a failure to operators, with its message, unless enough were shown lately."""
        found = self._teller.describe(in_flight.msg_id)
        about = f"message {found['message_id']}"
        if "queue" in found:
            about += f" of queue {found['queue']}"
        if self._tally.error(reason, about):
            log.info(
                "%s %s: %s",
                about,
                "failed" if failed else "is retried later",
                reason,
                extra={
                    **found,
                    **by,
                    "event": "message_failed" if failed else "message_retried_later",
                    "reason": reason,
                },
            )

    def _release(self, roots: Sequence[int]) -> int:
        """Release messages; return the number of roots that were no longer in flight."""
        found = [each for root in roots if (each := self.pending.pop(root)) is not None]
        for in_flight in found:
            self._give_back(in_flight)
        return len(roots) - len(found)

    def _give_back(self, in_flight: InFlight) -> None:
        self._tally.add("released")
        self._teller.release(in_flight.msg_id)


def _said(failure: Failure) -> str:
    return f"{failure.component}[{failure.task}]: {failure.reason}"


def _roots_of(outcomes: Outcomes) -> list[int]:
    return [*outcomes.acked, *(failure.root for failure in outcomes.failed), *outcomes.released]


def _part(outcomes: Outcomes, mine: Callable[[int], bool]) -> Outcomes:
    return Outcomes(
        acked=[root for root in outcomes.acked if mine(root)],
        failed=[failure for failure in outcomes.failed if mine(failure.root)],
        released=[root for root in outcomes.released if mine(root)],
        reset=[root for root in outcomes.reset if mine(root)],
        waiting=[root for root in outcomes.waiting if mine(root)],
    )

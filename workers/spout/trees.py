"""The tuple trees of one spout task: which are in flight, and how outcomes, timeouts and
losses end them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ledger import Failure, Ledger, Outcomes
from tiercel.acker.metrics.contract import bucket_of
from tiercel.queues.nouns import counted
from tiercel.queues.spout import MsgId
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.pending import InFlight, Pending
from tiercel.workers.spout.tally import Tally
from tiercel.workers.spout.telling import Telling

log = logging.getLogger(__name__)


class Trees:
    """Tells the spout what became of each message that it emitted with an id.

    One thread, the spout's.
    """

    def __init__(
        self,
        telling: Telling,
        ledger: Ledger,
        tally: Tally,
        admission: Admission,
        message_timeout: timedelta | None,
    ) -> None:
        self._telling = telling
        self._ledger = ledger
        self._tally = tally
        self._admission = admission
        self._pending = Pending(message_timeout)
        # Trees that wait for a limit, by root: beyond the bound.
        self.waiting = self._pending.waiting
        self._sending: set[int] = set()
        # Outcomes of roots whose batch is still being sent: their append took effect, and
        # its reply was lost.
        self._early: list[Outcomes] = []

    def __len__(self) -> int:
        """Trees in flight, without the ones that are being sent."""
        return len(self._pending)

    @property
    def working(self) -> int:
        """Number of trees that the bound counts."""
        return self._pending.working

    def oldest_s(self, now: float) -> float:
        """Seconds since the oldest was emitted; 0 if nothing is in flight."""
        return self._pending.oldest_s(now)

    @property
    def next_timeout(self) -> float | None:
        """Time at which the next one times out; None if none will."""
        return self._pending.next_timeout

    def look(self, now: float) -> None:
        """Have the bound follow a standstill or an idle time; call it about once per second."""
        self._admission.look(now, self.working)

    # -- on their way ------------------------------------------------------------------------------

    def sending(self, roots: Iterable[int]) -> None:
        """These roots are about to be registered: an outcome that comes before
        ``sent`` waits for it.
        """
        self._sending = set(roots)

    def sent(self, emitted: Sequence[tuple[int, MsgId]], now: float) -> None:
        """These, (root, message id) each, are in flight since now."""
        self._pending.add_all(emitted, now)
        early = self._take_early()
        for outcomes in early:
            self.take_outcomes(outcomes, now)

    def not_sent(self) -> None:
        """They are not in flight, and will be emitted anew."""
        self._take_early()

    def split_early(self, emitted: Sequence[tuple[int, MsgId]], now: float) -> set[int]:
        """The worker ends while these are being sent: end the ones that have their outcome;
        returns their roots.
        """
        known = {root for outcomes in self._early for root in _roots_of(outcomes)}
        self._pending.add_all([(root, msg_id) for root, msg_id in emitted if root in known], now)
        for outcomes in self._take_early():
            self.take_outcomes(outcomes, now)
        return known

    def _take_early(self) -> list[Outcomes]:
        early = self._early
        self._early = []
        self._sending = set()
        return early

    # -- outcomes ----------------------------------------------------------------------------------

    def take_outcomes(self, outcomes: Outcomes, now: float) -> int:
        """Tell the spout; returns how many roots were not in flight any more.

        A loss of the ledger is the caller's.
        """
        if self._sending:
            outcomes = self._put_aside(outcomes)
        # Steps 7 and 8 of docs/one-message.md.
        if log.isEnabledFor(logging.DEBUG):
            for root in outcomes.acked:
                log.debug(
                    "7. the tree of root %d is complete", root, extra={"event": "message_step"}
                )
        late = self._ack(outcomes.acked, now)
        for failure in outcomes.failed:
            in_flight = self._pending.pop(failure.root)
            if in_flight is None:
                late += 1
            else:
                self._fail(in_flight, failure, now)
        late += self._release(outcomes.released)
        for root in outcomes.reset:
            self._pending.reset(root, now)
        if outcomes.waiting:
            self._set_apart(outcomes.waiting, now)
        return late

    def expire(self, now: float, *, blame: bool) -> bool:
        """Fail the tuples that have timed out; without ``blame``, as while no driver is there, it
        is given back. False: nothing has.
        """
        expired = self._pending.expire(now)
        if not expired:
            return False
        for _, in_flight in expired:
            if blame:
                self._tally.add("timeout")
                if not in_flight.waited:
                    self._admission.timed_out(in_flight.emitted_at, now)
                self._count_failure(in_flight, "timeout")
                self._telling.fail(in_flight.msg_id, "timeout")
            else:
                self._give_back(in_flight)
        self._forget([root for root, _ in expired])
        return True

    def give_back_all(self, why: str) -> None:
        """Give back all that is in flight, without blame."""
        roots = [root for root, _ in self._pending.items()]
        if roots:
            log.warning(
                "%s: giving %s back",
                why,
                counted(len(roots), "message"),
                extra={"event": "messages_released"},
            )
        self._release(roots)
        self._forget(roots)

    def tell_acked(self, msg_ids: Sequence[MsgId]) -> None:
        """The trees of these messages were processed, or are not tracked."""
        if log.isEnabledFor(logging.DEBUG):
            for msg_id in msg_ids:
                log.debug("8. the spout acks message %s", msg_id, extra={"event": "message_step"})
        self._tally.add("acked", len(msg_ids))
        self._telling.ack(msg_ids)

    def _put_aside(self, outcomes: Outcomes) -> Outcomes:
        """Keep the outcomes for the batch that is being sent; returns the rest."""
        mine = self._sending
        early = _part(outcomes, lambda root: root in mine)
        if not early:
            return outcomes
        self._early.append(early)
        return _part(outcomes, lambda root: root not in mine)

    def _ack(self, roots: Sequence[int], now: float) -> int:
        msg_ids, emitted_at, waited = self._pending.pop_all(roots)
        # Tuples that were sent together have one latency here.
        worked_s = self._add_latencies(Counter(emitted_at), now)
        waited_s = self._add_latencies(Counter(each.emitted_at for each in waited), now)
        self._admission.completed(len(msg_ids), worked_s, now)
        msg_ids += [each.msg_id for each in waited]
        if msg_ids:
            self._tally.add("complete_us", round((worked_s + waited_s) * 1e6))
            self.tell_acked(msg_ids)
        return len(roots) - len(msg_ids)

    def _add_latencies(self, emitted: Mapping[float, int], now: float) -> float:
        """Count trees by their latency; return the sum of the latencies."""
        total_s = 0.0
        for then, count in emitted.items():
            total_s += (now - then) * count
            self._tally.add(bucket_of((now - then) * 1000), count)
        return total_s

    def _set_apart(self, roots: Sequence[int], now: float) -> None:
        """These trees wait for a limit: they hold no room of the others, and the bolts before it
        are done with them.
        """
        found = [self._pending.wait(root, now) for root in roots]
        took_s = [now - emitted_at for emitted_at in found if emitted_at is not None]
        self._admission.completed(len(took_s), sum(took_s), now)

    def _fail(self, in_flight: InFlight, failure: Failure, now: float) -> None:
        """Fail the message in the way that the bolt asked for."""
        reason = _said(failure)
        if failure.blame:
            self._count_failure(in_flight, reason)
        else:
            self._tally.add("released")
        if not in_flight.waited:
            self._admission.failed(now - in_flight.emitted_at, now)
        told = self._telling
        if failure.reject:
            told.reject(in_flight.msg_id, reason)
        elif failure.retry_after_s is not None:
            told.retry_later(in_flight.msg_id, failure.retry_after_s, reason, blame=failure.blame)
        else:
            told.fail(in_flight.msg_id, reason)

    def _count_failure(self, in_flight: InFlight, reason: str) -> None:
        self._tally.add("failed")
        if self._tally.error(reason):
            log.info(
                "message %s failed: %s",
                in_flight.msg_id,
                reason,
                extra={"event": "message_failed", "reason": reason},
            )

    def _release(self, roots: Sequence[int]) -> int:
        """Give these back to the source without blame.

        Returns how many were not in flight any more.
        """
        found = [each for root in roots if (each := self._pending.pop(root)) is not None]
        for in_flight in found:
            self._give_back(in_flight)
        return len(roots) - len(found)

    def _give_back(self, in_flight: InFlight) -> None:
        self._tally.add("released")
        self._telling.release(in_flight.msg_id)

    def _forget(self, roots: Sequence[int]) -> None:
        if not roots:
            return
        try:
            self._ledger.forget(roots)
        except RedisUnavailableError as error:
            log.debug("entries are left to expire: %s", error, extra={"event": "entries_left"})


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

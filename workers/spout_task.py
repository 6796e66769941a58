"""Runs one spout task: emits its tuples, tracks their trees, and tells the spout what became of each.

Everything that touches the spout, the pending map and the emitter happens on one thread, the one that calls ``run``. Other
threads only hand things over: the outcome reader its outcomes, a spout's own threads their deliveries (through ``wake``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from acker import Ledger, LedgerUnavailableError, Outcomes, RootIds
from acker.histogram import bucket_of
from queues import Spout, SpoutContext
from queues.spout import MsgId, overrides_last, takes_reason
from spark_jobs.emission import SpoutEmitter
from workers.admission import Admission
from workers.collector import Emitted, TaskCollector
from workers.orders import Orders
from workers.outbox import Outbox, Sent
from workers.outcomes import OutcomeReader
from workers.pace import Pace
from workers.patience import patiently
from workers.pending import InFlight, Pending
from workers.tally import Tally

log = logging.getLogger(__name__)

_BATCH_TUPLES = 2_000
_BATCH_SECONDS = 0.02
"""A batch is sent when it is full or old enough, or when the spout has no more."""
_CHECK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class SpoutSettings:
    """What a spout task runs under."""

    message_timeout: timedelta | None
    admission: Admission
    tracked: bool
    """False with ``ackers=0``: a tuple counts as acked as soon as it is in the relay."""
    grace: timedelta
    """How long the end may take: settle what finishes within it, give the rest back."""


class SpoutTask:
    """One task of one spout."""

    def __init__(  # noqa: PLR0913 - the things it joins, each with a contract of its own
        self,
        *,
        spout: Spout,
        emitter: SpoutEmitter,
        ledger: Ledger,
        outbox: Outbox,
        tally: Tally,
        orders: Orders,
        settings: SpoutSettings,
    ) -> None:
        self._spout, self._ledger, self._outbox, self._tally = spout, ledger, outbox, tally
        self._orders, self._settings = orders, settings
        self._admission = settings.admission
        self._pending = Pending(settings.message_timeout)
        root_ids = RootIds(settings.message_timeout or timedelta(seconds=30)) if settings.tracked else None
        self._collector = TaskCollector(emitter, tally, root_ids)
        self._outgoing = Emitted()
        """The batch in the outbox. What ``ack`` and ``fail`` emit meanwhile belongs to the next one."""
        self._was_full = False
        self._check_at = 0.0
        self._pace = Pace()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._give_reason = takes_reason(spout)
        self._many = overrides_last(spout, "next_tuples", "next_tuple")
        self._acks_many = overrides_last(spout, "ack_all", "ack")
        self._outcomes: OutcomeReader | None = None

    @property
    def wake(self) -> Callable[[], None]:
        """Thread-safe: something happened, look again now."""
        return self._wake.set

    def stop(self) -> None:
        """Thread-safe and safe in a signal handler: begin to end."""
        self._stop.set()
        self._wake.set()

    def run(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        """Open the spout and work until ``stop``; raises what a person must act on."""
        if self._settings.tracked:
            self._outcomes = patiently(self._stop, OutcomeReader, self._ledger, context.task_id, self._wake.set)
            if self._outcomes is None:
                return
            self._outcomes.start()
        self._spout.open(config, context)
        try:
            while not self._stop.is_set():
                self._step(emitting=True)
        finally:
            self._end()

    def _step(self, *, emitting: bool) -> None:
        """One round; waits a moment for a wake-up if there was nothing to do."""
        now = time.monotonic()
        worked = self._take_outcomes(now)
        worked |= self._expire(now)
        if now >= self._check_at:
            self._check_at = now + _CHECK_SECONDS
            self._spout.check()
            in_flight = len(self._pending) + len(self._outgoing.tuples) + len(self._collector)
            self._orders.obey(self._spout, in_flight, self.stop, self._pending.oldest_s(now))
        if emitting and self._pace.may_begin(now) and self._orders.active and self._outbox.may_fill(now):
            worked |= self._fill(now)
        if self._outbox.due(now):
            worked |= self._send(now)
        self._tally.flush()
        if worked:
            self._pace.worked()
        else:
            self._wake.wait(self._pace.rest_s(now))
            self._wake.clear()

    # -- from the spout to the relay ---------------------------------------------------------------------------------------

    def _fill(self, now: float) -> bool:
        """Ask the spout for tuples until it has none, the batch is full or old, or the bound is reached."""
        room = min(self._admission.bound - len(self._pending), _BATCH_TUPLES)
        if room <= 0:
            self._was_full = True
        count = len(self._collector)
        while count < room and time.monotonic() - now < _BATCH_SECONDS:
            if self._many:
                self._spout.next_tuples(self._collector, room - count)
            else:
                self._spout.next_tuple(self._collector)
            if len(self._collector) == count:
                break
            count = len(self._collector)
        if not count:
            return False
        emission, self._outgoing = self._collector.take()
        self._outbox.put(emission)
        self._pace.began(now)
        return True

    def _send(self, now: float) -> bool:
        sent = self._outbox.send(now)
        if sent is Sent.LATER:
            return False
        emitted, self._outgoing = self._outgoing, Emitted()
        if sent is Sent.DONE:
            self._tally.add("emitted", len(emitted.tuples))
            self._tally.add("transferred", emitted.transferred)
        # The timeout begins here: whatever waited for Redis until now had not been emitted.
        now = time.monotonic()
        wanted = [(root, msg_id) for root, msg_id in emitted.tuples if msg_id is not None]
        if sent is Sent.COLLIDED:
            for _, msg_id in wanted:
                self._spout.release(msg_id)
            return True
        untracked = [msg_id for root, msg_id in wanted if root is None]
        if untracked:
            self._tell_acked(untracked)
            self._tally.add("acked", len(untracked))
        self._pending.add_all([(root, msg_id) for root, msg_id in wanted if root is not None], now)
        return True

    # -- from the ledger to the spout --------------------------------------------------------------------------------------

    def _take_outcomes(self, now: float) -> bool:
        if self._outcomes is None:
            return False
        if self._outcomes.error is not None:
            raise self._outcomes.error
        taken = self._outcomes.take()
        for outcomes in taken:
            self._settle(outcomes, now)
        return bool(taken)

    def _settle(self, outcomes: Outcomes, now: float) -> None:
        late = self._ack(outcomes.acked, now)
        for failure in outcomes.failed:
            in_flight = self._pending.pop(failure.root)
            if in_flight is None:
                late += 1
            else:
                self._fail(in_flight, f"{failure.component}[{failure.task}]: {failure.reason}")
        late += self._release(outcomes.released)
        for root in outcomes.reset:
            self._pending.reset(root, now)
        if outcomes.ledger_lost:
            self._outbox.register_again()
            self._give_back_all("Redis lost the ledger")
        if late:
            self._tally.add("late_outcomes", late)

    def _ack(self, roots: Sequence[int], now: float) -> int:
        msg_ids, emitted_at = self._pending.pop_all(roots)
        if msg_ids:
            self._tell_acked(msg_ids)
            total = 0.0
            # What was sent together has one latency here.
            for then, count in Counter(emitted_at).items():
                total += (now - then) * count
                self._tally.add(bucket_of((now - then) * 1000), count)
            self._tally.add("acked", len(msg_ids))
            self._tally.add("complete_us", round(total * 1e6))
            self._admission = self._admission.observe(min(emitted_at), now, was_full=self._was_full)
            self._was_full = False
        return len(roots) - len(msg_ids)

    def _tell_acked(self, msg_ids: Sequence[MsgId]) -> None:
        if self._acks_many:
            self._spout.ack_all(msg_ids)
        else:
            for msg_id in msg_ids:
                self._spout.ack(msg_id)

    def _expire(self, now: float) -> bool:
        expired = self._pending.expire(now)
        for _, in_flight in expired:
            self._tally.add("timeout")
            self._fail(in_flight, "timeout")
        self._forget([root for root, _ in expired])
        return bool(expired)

    def _fail(self, in_flight: InFlight, reason: str) -> None:
        self._tally.add("failed")
        if self._tally.error(reason):
            log.info("message %s failed: %s", in_flight.msg_id, reason, extra={"event": "message_failed", "reason": reason})
        if self._give_reason:
            self._spout.fail(in_flight.msg_id, reason)
        else:
            self._spout.fail(in_flight.msg_id)

    def _release(self, roots: Iterable[int]) -> int:
        """Give these back to the source without blame; returns how many were not in flight any more."""
        late = 0
        for root in roots:
            in_flight = self._pending.pop(root)
            if in_flight is None:
                late += 1
            else:
                self._tally.add("released")
                self._spout.release(in_flight.msg_id)
        return late

    def _give_back_all(self, why: str) -> None:
        roots = [root for root, _ in self._pending.items()]
        if roots:
            log.warning("%s: giving %d messages back", why, len(roots), extra={"event": "messages_released"})
        self._release(roots)
        self._forget(roots)

    def _give_back_unsent(self) -> None:
        """What a spout then emits, because something was given back, goes nowhere, and is not given back in turn."""
        _, waiting = self._collector.take()
        for _, msg_id in [*self._outgoing.tuples, *waiting.tuples]:
            if msg_id is not None:
                self._spout.release(msg_id)

    def _forget(self, roots: Sequence[int]) -> None:
        if not roots:
            return
        try:
            self._ledger.forget(roots)
        except LedgerUnavailableError as error:
            log.debug("entries are left to expire: %s", error, extra={"event": "entries_left"})

    def _end(self) -> None:
        deadline = time.monotonic() + self._settings.grace.total_seconds()
        self._orders.end(self._spout)
        while (self._pending or self._outbox.holds) and time.monotonic() < deadline:
            self._step(emitting=False)
        self._give_back_unsent()
        self._give_back_all("shutting down")
        self._spout.close(self._settings.grace)
        if self._outcomes is not None:
            self._outcomes.close()
        self._tally.flush(now=True)
        self._orders.leave()

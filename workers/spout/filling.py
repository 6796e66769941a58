"""From the spout to the inboxes: asks for tuples while there is room, and sends them in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tiercel.acker.inbox.chunk import PARCEL_BYTES
from tiercel.queues.spout import overrides_last
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.collector import Emitted, TaskCollector
from tiercel.workers.spout.outbox import BatchFate, Outbox
from tiercel.workers.spout.pace import Pace
from tiercel.workers.spout.tally import Tally
from tiercel.workers.spout.telling import Telling
from tiercel.workers.spout.trees import Trees

log = logging.getLogger(__name__)

BATCH_TUPLES = 2_000
# No further tuple is asked for after this size, so that a batch is encoded in little memory.
_BATCH_BYTES = 4 * PARCEL_BYTES
# A batch is sent when it is full or old enough, or when the spout has no more.
_BATCH_SECONDS = 0.02


class Filling:
    """Tuples that a spout emits, until they are in flight. One thread, the spout's.

    A spout may emit from ``ack``, ``fail`` and ``release`` too, at any time: that belongs
    to the next batch.
    """

    def __init__(  # noqa: PLR0913 - the things it joins, each with a contract of its own
        self,
        *,
        telling: Telling,
        collector: TaskCollector,
        outbox: Outbox,
        trees: Trees,
        admission: Admission,
        pace: Pace,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._telling = telling
        self._spout = telling.spout
        self._collector = collector
        self._outbox = outbox
        self._trees = trees
        self._admission = admission
        self._pace = pace
        self._tally = tally
        self._clock = clock
        self._outgoing = Emitted()
        self._many = overrides_last(telling.spout, "next_tuples", "next_tuple")

    def __len__(self) -> int:
        """Tuples that are not in flight yet."""
        return len(self._outgoing.tuples) + len(self._collector)

    def follow(self, topology: Topology) -> None:
        """Emit to the tasks of this topology from now on.

        What the spout emitted to other tasks since the last batch is given back, and emitted again.
        """
        for _, msg_id in self._collector.follow(topology).tuples:
            if msg_id is not None:
                self._telling.release(msg_id)

    def fill(self, now: float) -> bool:
        """Ask the spout for tuples until it has none, the batch is full or old, or the
        bound is reached.

        The bound counts tracked tuples; untracked ones are bounded by the inboxes, and tuples that
        wait for a limit by the bolt that has it.
        False: there are none.
        """
        count = self._ask(now, self._admission.bound - self._trees.working)
        if not count:
            return False
        self._put()
        self._pace.began(now)
        return True

    def _ask(self, now: float, room: int) -> int:
        """Ask the spout while there is room; returns how many tuples there are
        for the next batch.
        """
        count = len(self._collector)
        while (
            count < BATCH_TUPLES
            and self._collector.size < _BATCH_BYTES
            and self._collector.tracked < room
            and self._clock() - now < _BATCH_SECONDS
        ):
            if self._many:
                limit = BATCH_TUPLES - count
                if self._collector.tracks:
                    limit = min(limit, room - self._collector.tracked)
                self._spout.next_tuples(self._collector, limit)
            else:
                self._spout.next_tuple(self._collector)
            if len(self._collector) == count:
                break
            count = len(self._collector)
        if self._collector.tracked >= room:
            self._admission.reached(now)
        return count

    def send(self, now: float) -> bool:
        """Send the held batch; False if Redis does not take it now."""
        fate = self._outbox.send(now)
        if fate is BatchFate.LATER:
            return False
        if fate is not BatchFate.REFUSED and log.isEnabledFor(logging.DEBUG):
            self._log("3. message %s, root %d, is in the ledger and on its way")
        emitted = self._outgoing
        self._outgoing = Emitted()
        # The timeout begins here: tuples that waited for Redis until now had not been emitted.
        began = now
        now = self._clock()
        self._pace.sent(now - began)
        wanted = [(root, msg_id) for root, msg_id in emitted.tuples if msg_id is not None]
        if fate is BatchFate.REFUSED:
            self._trees.not_sent()
            for _, msg_id in wanted:
                self._telling.release(msg_id)
            return True
        self._tally.add("emitted", len(emitted.tuples))
        self._tally.add("transferred", emitted.transferred)
        untracked = [msg_id for root, msg_id in wanted if root is None]
        if untracked:
            self._trees.tell_acked(untracked)
        self._trees.sent([(root, msg_id) for root, msg_id in wanted if root is not None], now)
        return True

    def give_back_unsent(self) -> None:
        """Give back the tuples that are not in flight, for the worker ends.

        What a spout then emits, because something was given back, goes nowhere, and is not
        given back in turn.
        """
        _, waiting = self._collector.take()
        held = [(root, msg_id) for root, msg_id in self._outgoing.tuples if msg_id is not None]
        tracked = [(root, msg_id) for root, msg_id in held if root is not None]
        decided = self._trees.split_early(tracked, self._clock())
        for root, msg_id in [*held, *waiting.tuples]:
            if msg_id is not None and (root is None or root not in decided):
                self._telling.release(msg_id)

    def _put(self) -> None:
        emission, self._outgoing = self._collector.take()
        if log.isEnabledFor(logging.DEBUG):
            self._log("2. message %s is root %d")
        self._trees.sending(emission.roots)
        self._outbox.put(emission)

    def _log(self, step: str) -> None:
        """Log steps 2 and 3 of docs/one-message.md for each tracked tuple of the batch."""
        for root, msg_id in self._outgoing.tuples:
            if root is not None and msg_id is not None:
                log.debug(step, msg_id, root, extra={"event": "message_step"})

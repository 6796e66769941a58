"""A working reader, in the one process that Spark keeps for it during a query: it takes messages,
plans batches of them, and settles them once their batch is committed.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tiercel.frames.columns import MessageColumns, Source, cut
from tiercel.frames.options import SourceOptions
from tiercel.frames.post import Post
from tiercel.frames.taker import Batches, MessageFailure, MessageKey, Taken, Taker
from tiercel.queues.consuming.messages import Delivery

log = logging.getLogger(__name__)

_GRACE = timedelta(seconds=5)
# Longest wait for the listener's notice of a commit when a query is stopped just after it.
_LAST_WORD_S = 3.0
# A queue with messages delivers them without pauses this long.
_PAUSE_S = 0.1
# Wait before asking the broker whether another consumer has taken the rest; it doubles up to the
# longest, since each look is a connection, and another consumer may hold the queue for hours.
_LOOK_S = 0.5
_LONGEST_LOOK_S = 30.0
# Longest wait for the first messages: all of a queue may go to another consumer (the single active
# one, or one of a higher priority), while the other queues of the query would wait too.
_FIRST_S = 15.0


@dataclass(frozen=True, slots=True)
class ReadOffset:
    """The offset of a query, as in Spark's checkpoint: the number of messages read, and the reader
    that read the last of them.

    RabbitMQ has no positions. Only a live reader knows the messages of its offsets; for any later
    reader the messages up to an offset are settled, or back in their queue.
    """

    reader: str
    messages: int

    @classmethod
    def parse(cls, offset: Mapping[str, Any] | None) -> ReadOffset | None:
        """Parse an offset; return None if it belongs to another source."""
        reader, messages = (offset or {}).get("reader"), (offset or {}).get("messages")
        if isinstance(reader, str) and isinstance(messages, int):
            return cls(reader, messages)
        return None

    def json(self) -> dict[str, Any]:
        return {"reader": self.reader, "messages": self.messages}


# The offset at which a new query begins.
BEGINNING = ReadOffset("", 0)


class ReadingSession:
    """The reader of one query. Spark makes one call at a time; the listener calls in between."""

    def __init__(self, options: SourceOptions, columns: MessageColumns) -> None:
        """Raise QueuesError if the reader cannot work and an operator must act."""
        self.id = secrets.token_hex(8)
        self._options = options
        self._columns = columns
        self._batches = Batches()
        self._told = threading.Event()
        self._is_first = True
        self._stopping = threading.Lock()
        self._stopped = False
        # True once the query is known to have ended.
        self._ended = False
        # Number of messages read by this reader and the readers before it.
        self._messages = 0
        # Number of messages still to be read from each queue; None: unlimited. One number for all
        # queues would be used up by new messages of a busy queue.
        self._left: list[int] | None = None
        # Number of messages of each queue that failed, and have not been delivered again since.
        self._failed: Counter[int] = Counter()
        self._counting = threading.Lock()
        self._taker = Taker(options)
        self._taker.start()
        self._post = Post(self.id, self._on_word)

    # -- Spark's calls -----------------------------------------------------------------------------

    def resume(self, offset: ReadOffset) -> None:
        """Continue where another reader ended, or where the query began."""
        if offset.reader != self.id:
            self._messages = max(self._messages, offset.messages)

    def committed(self, offset: ReadOffset) -> None:
        """Everything up to this offset is committed: settle it."""
        if offset.reader == self.id:
            self._settle(offset.messages)

    def planned_is_committed(self) -> None:
        """Everything that Spark has seen is committed: settle it."""
        self._settle(self._batches.planned)

    def take(self, start: ReadOffset, most: int | None) -> ReadOffset:
        """Take at most ``most`` of the ready messages; return ``start`` if there are none.

        Raises QueuesError when an operator must act.
        """
        self._taker.check()
        bound = most or self._options.max_messages
        rested = self._taker.wake()
        if self._left is not None:
            taken = self._wait_for(min(bound, sum(self._left)), within=self._left)
        elif self._is_first:
            # The consumers have just started, and the next trigger may be an hour away.
            taken = self._wait_for(min(bound, sum(self._taker.ready_at_start)), _FIRST_S)
        elif rested:
            taken = self._wait_for(bound, _FIRST_S)
        else:
            taken = self._taker.take(bound, self._options.max_bytes)
        self._is_first = False
        count = sum(map(len, taken))
        if not count:
            if self._left is not None:
                self._left = [0] * len(self._left)
            return start
        self._messages += count
        if self._left is not None:
            self._left = [
                left - self._new(place, taken[place]) for place, left in enumerate(self._left)
            ]
        self._add(taken)
        return ReadOffset(self.id, self._messages)

    def warn_of_the_rest(self, taken: int) -> None:
        """Log that the only batch of this query does not have all messages that waited."""
        waited = sum(self._taker.ready_at_start)
        if taken < waited:
            log.warning(
                "this query has only one batch, with %d of the %d messages in %s: with "
                "trigger(once=True) the limits hold too; trigger(availableNow=True) reads all of "
                "them, in several batches",
                taken,
                waited,
                ", ".join(self._taker.queues),
                extra={"event": "messages_left"},
            )

    def end_with_what_is_there(self) -> None:
        """Read the messages that waited in the queues when this reader began, and no more."""
        self._left = self._taker.ready_at_start

    def plan(self, start: ReadOffset, end: ReadOffset) -> list[bytes]:
        """Return the rows between two offsets; none for offsets of an earlier reader: its messages
        are delivered again, in a later batch.
        """
        if end.reader != self.id:
            return []
        return self._batches.plan(start.messages if start.reader == self.id else -1, end.messages)

    def stop(self) -> None:
        """Settle the committed messages, and give back all others.

        Idempotent: a second call, on another thread, returns when the first one is done.
        """
        with self._stopping:
            if not self._stopped:
                self._stopped = True
                self._stop()

    def _stop(self) -> None:
        until = time.monotonic() + _LAST_WORD_S
        while self._batches.is_undecided and not self._ended:
            if not self._told.wait(max(0.0, until - time.monotonic())):
                break
            self._told.clear()
        self._post.close()
        self._taker.stop(_GRACE)

    # -- notices from the listener and from users --------------------------------------------------

    def _on_word(self, word: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        if "committed" in word:
            self._settle(int(word["committed"]))
        if "fail" in word:
            failures = [
                (MessageKey(place, epoch, tag), MessageFailure(reason, bool(word["again"])))
                for place, epoch, tag, reason in word["fail"]
            ]
            answer["failed"] = self._batches.fail(failures)
        self._ended = self._ended or "ended" in word
        self._told.set()
        return answer

    # -- inside ------------------------------------------------------------------------------------

    def _settle(self, up_to: int) -> None:
        for settlement in self._batches.commit(up_to):
            with self._counting:
                self._failed.update(
                    key.place for key, failure in settlement.failures.items() if failure.again
                )
            self._taker.settle(settlement)

    def _new(self, place: int, found: Sequence[Delivery]) -> int:
        """Count the messages that this reader gets for the first time: not the ones that failed,
        nor, after the first epoch, the ones of a lost connection.
        """
        again = sum(each.redelivered for each in found if each.epoch == 1)
        with self._counting:
            failed = min(again, self._failed[place])
            self._failed[place] -= failed
        return sum(each.epoch == 1 or not each.redelivered for each in found) - failed

    def _add(self, found: list[list[Delivery]]) -> None:
        taken: list[Taken] = []
        pieces: list[bytes] = []
        for place, deliveries in enumerate(found):
            source = Source(self.id, place, self._taker.queues[place])
            columned = self._columns.of(source, deliveries)
            for delivery, reason in columned.bad:
                self._taker.dead_letter(place, delivery, reason)
            tags: dict[int, list[int]] = {}
            for delivery in columned.deliveries:
                tags.setdefault(delivery.epoch, []).append(delivery.tag)
            taken += [Taken(place, epoch, those) for epoch, those in tags.items()]
            pieces += cut(columned.rows, self._options.partitions)
        self._batches.add(self._messages, taken, pieces)

    def _wait_for(
        self, most: int, patience_s: float = math.inf, within: Sequence[int] | None = None
    ) -> list[list[Delivery]]:
        """Wait for this many messages and take them; fewer if there are no more, or if none arrives
        for ``patience_s``. ``within`` bounds their number for each queue.
        """
        left = list(within or [most] * len(self._taker.queues))
        taken: list[list[Delivery]] = [[] for _ in left]
        count = size = 0
        was_empty = warned = False
        look_s = _LOOK_S
        began = moved = time.monotonic()
        while count < most and size < self._options.max_bytes:
            found = self._taker.take(most - count, self._options.max_bytes - size, left)
            if any(found):
                for place, new in enumerate(found):
                    taken[place] += new
                    left[place] -= len(new)
                    count += len(new)
                    size += sum(each.size for each in new)
                moved = time.monotonic()
            elif count:
                if time.monotonic() - moved > _PAUSE_S:
                    break
            elif time.monotonic() - began > patience_s:
                break
            elif time.monotonic() - moved > look_s:
                # The last messages of an empty queue may have been in flight to this reader.
                if was_empty:
                    break
                was_empty = self._taker.are_empty([at for at, more in enumerate(left) if more > 0])
                moved = time.monotonic()
                look_s = _LOOK_S if was_empty else min(2 * look_s, _LONGEST_LOOK_S)
                if not was_empty and not warned and moved - began > _FIRST_S:
                    warned = True
                    _warn_of_waiting(self._taker.queues)
            self._taker.wait(_PAUSE_S / 2)
            self._taker.check()
        return taken


def _warn_of_waiting(queues: Iterable[str]) -> None:
    log.warning(
        "messages wait in %s and none comes: another consumer takes them first, because it is the "
        "single active one or has a higher priority, or RabbitMQ is away; this query waits",
        ", ".join(queues),
        extra={"event": "reader_waits"},
    )

"""The consumers of one reader: one per queue."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from tiercel.frames.options import SourceOptions
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, declare_work_queue
from tiercel.queues.broker.depths import depths
from tiercel.queues.consuming.consumer import Consumer, ConsumerSettings
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.errors import BrokerUnavailableError
from tiercel.queues.limits import MAX_BODY_BYTES

log = logging.getLogger(__name__)

_NAME = "tiercel data frame"
# Messages taken at once from one queue before the next queue has its turn.
_TURN = 256
# Long enough for a restart of the broker, and short enough to report a wrong address.
_PATIENCE = timedelta(seconds=15)
# If nothing is taken for this long, all messages not yet taken are given back. Messages waiting
# here for tomorrow's trigger would repeatedly run into RabbitMQ's consumer timeout, twice this
# time, together with all taken messages; a queue that limits returns would finally dead-letter
# them.
_REST_S = 900.0
_REST_LOOK_S = 5.0


class MessageKey(NamedTuple):
    """Key of a taken message."""

    place: int
    epoch: int
    tag: int


class MessageFailure(NamedTuple):
    """The reason why a message failed."""

    reason: str
    # False: the message goes to the dead-letter queue at once.
    again: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """Messages that one consumer handed out on one channel."""

    place: int
    epoch: int
    tags: list[int]


@dataclass(slots=True)
class Settlement:
    """Messages to ack at the broker, except failed ones."""

    taken: Sequence[Taken]
    failures: dict[MessageKey, MessageFailure] = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    up_to: int
    slices: list[bytes]
    settlement: Settlement


class Batches:
    """Batches by the number of messages read up to their end. Thread-safe.

    A batch is *taken*, then *planned* (its rows are handed to Spark, as often as Spark asks for
    them), then *committed*: only then may its messages be settled, and only once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[_Batch] = deque()
        self._planned = 0

    def add(self, up_to: int, taken: Sequence[Taken], slices: list[bytes]) -> None:
        """Add a batch; ``up_to`` is above that of all earlier batches."""
        with self._lock:
            self._batches.append(_Batch(up_to, slices, Settlement(taken)))

    def plan(self, after: int, up_to: int) -> list[bytes]:
        """Return the rows of the batches in this range."""
        with self._lock:
            self._planned = max(self._planned, up_to)
            return [
                piece
                for batch in self._batches
                if after < batch.up_to <= up_to
                for piece in batch.slices
            ]

    @property
    def planned(self) -> int:
        """The end of the last batch whose rows Spark has."""
        return self._planned

    @property
    def is_undecided(self) -> bool:
        """True if Spark has rows of a batch that may not be committed yet."""
        with self._lock:
            return bool(self._batches) and self._batches[0].up_to <= self._planned

    def commit(self, up_to: int) -> list[Settlement]:
        """Return the messages to settle now, of planned batches up to ``up_to``.

        A second call for the same batches returns nothing.
        """
        settlements = []
        with self._lock:
            if any(batch.up_to == up_to for batch in self._batches):
                # Spark does not plan a batch if its optimizer knows that no row is needed, as with
                # ``where("false")``, but commits it like any other. Holding its messages any longer
                # would silently stop the query when they fill the prefetch.
                self._planned = max(self._planned, up_to)
            while self._batches and self._batches[0].up_to <= min(up_to, self._planned):
                settlements.append(self._batches.popleft().settlement)
        return settlements

    def fail(self, failures: Iterable[tuple[MessageKey, MessageFailure]]) -> int:
        """Record failed messages until their batch is committed; return their number.

        Messages of committed batches, or of a lost channel, do not count.
        """
        count = 0
        with self._lock:
            there = [
                (taken.place, taken.epoch, frozenset(taken.tags), batch.settlement)
                for batch in self._batches
                for taken in batch.settlement.taken
            ]
            for key, failure in failures:
                for place, epoch, tags, settlement in there:
                    if (key.place, key.epoch) == (place, epoch) and key.tag in tags:
                        settlement.failures[key] = failure
                        count += 1
        return count


class Taker:
    """Opens messages of some queues, and settles them on request."""

    def __init__(self, options: SourceOptions) -> None:
        self.queues = options.queues
        self._options = options
        self._arrived = threading.Event()
        self._consumers: list[Consumer] = []
        # Number of messages that waited in each queue before this reader took any.
        self.ready_at_start: list[int] = []
        # Average size of the last messages, which keeps a turn from being much too large.
        self._mean = float(MAX_BODY_BYTES)
        self._resting = threading.Lock()
        self._rests = False
        self._asked_s = time.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        """Start consuming.

        Raises QueuesError if that is impossible: RabbitMQ does not answer, the login is refused, or
        a queue is missing.
        """
        with connected(self._options.address, _NAME, _PATIENCE) as connection:
            for queue in self.queues:
                declare_work_queue(connection, self._options.address, self._work_queue(queue))
        self.ready_at_start = self._ready()
        self._consumers = [self._consumer(queue) for queue in self.queues]
        for consumer in self._consumers:
            consumer.start()
        self.wake()
        threading.Thread(target=self._rest_now_and_then, name="tiercel rest", daemon=True).start()

    def wake(self) -> bool:
        """Take messages again after a rest; return True if there was a rest: then none has arrived
        yet.
        """
        with self._resting:
            self._asked_s = time.monotonic()
            rested = self._rests and not self._ended.is_set()
            self._rests = False
            if rested:
                for consumer in self._consumers:
                    consumer.resume()
            return rested

    def check(self) -> None:
        """Raise QueuesError when an operator must act: a queue was deleted, a login is refused."""
        for consumer in self._consumers:
            if (refusal := consumer.error()) is not None:
                raise refusal

    def are_empty(self, places: Iterable[int]) -> bool:
        """Return True if no message waits in the queues at these places, by the broker's count;
        False if the broker is away.

        Raises QueuesError when an operator must act.
        """
        try:
            ready = self._ready()
        except BrokerUnavailableError:
            return False
        return not any(ready[place] for place in places)

    def wait(self, timeout_s: float) -> None:
        """Wait until a message may have arrived."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()

    def take(
        self, most: int, most_bytes: int, within: Sequence[int] | None = None
    ) -> list[list[Delivery]]:
        """Take the next messages of each queue that have arrived, of hardly more bytes than
        ``most_bytes``.

        ``within`` bounds their number for each queue; None: for none.
        """
        self.wake()
        taken: list[list[Delivery]] = [[] for _ in self._consumers]
        count = 0
        size = 0
        open_places = set(range(len(self._consumers)))
        while open_places and count < most and size < most_bytes:
            for place in sorted(open_places):
                turn = min(_TURN, most - count, max(1, int((most_bytes - size) / self._mean)))
                if within is not None:
                    turn = min(turn, within[place] - len(taken[place]))
                found = self._consumers[place].get(turn) if turn > 0 else []
                if not found:
                    open_places.discard(place)
                    continue
                found_bytes = sum([delivery.size for delivery in found])
                self._mean = max(1.0, found_bytes / len(found))
                taken[place] += found
                count += len(found)
                size += found_bytes
        return taken

    def dead_letter(self, place: int, delivery: Delivery, reason: str) -> None:
        """Move a message to the dead-letter queue, with the reason."""
        self._consumers[place].dead_letter(delivery.epoch, delivery.tag, reason)

    def settle(self, settlement: Settlement) -> None:
        """Ack the processed messages, and fail the others."""
        failures = settlement.failures
        for taken in settlement.taken:
            tags = taken.tags
            if failures:
                place, epoch = taken.place, taken.epoch
                tags = [tag for tag in tags if MessageKey(place, epoch, tag) not in failures]
            self._consumers[taken.place].ack(taken.epoch, *tags)
        for key, failure in failures.items():
            consumer = self._consumers[key.place]
            if failure.again:
                consumer.fail(key.epoch, key.tag, failure.reason)
            else:
                consumer.dead_letter(key.epoch, key.tag, failure.reason)

    def stop(self, grace: timedelta) -> None:
        """Send the acks that are due, give back everything else, and close."""
        with self._resting:
            self._ended.set()
        for consumer in self._consumers:
            consumer.pause()
        deadline = time.monotonic() + grace.total_seconds()
        for consumer in self._consumers:
            if not consumer.stop(timedelta(seconds=max(0.1, deadline - time.monotonic()))):
                log.warning(
                    "RabbitMQ did not answer in time at the end; it requeues the open messages",
                    extra={"event": "reader_cut_off"},
                )

    def _rest_now_and_then(self) -> None:
        while not self._ended.wait(_REST_LOOK_S):
            with self._resting:
                if not self._rests and time.monotonic() - self._asked_s > _REST_S:
                    self._rests = True
                    for consumer in self._consumers:
                        consumer.pause()

    def _ready(self) -> list[int]:
        return [depth.ready for depth in depths(self._options.url, self.queues)]

    def _consumer(self, queue: str) -> Consumer:
        settings = ConsumerSettings(
            queue=self._work_queue(queue),
            wake=self._arrived.set,
            count=_count,
            name=f"{_NAME} {queue}",
            prefetch=self._options.prefetch,
            bytes_held=self._options.bytes_held,
        )
        return Consumer(self._options.address, settings)

    def _work_queue(self, queue: str) -> WorkQueue:
        return WorkQueue(name=queue, delivery_limit=self._options.delivery_limit, declare=False)


def _count(name: str, count: int) -> None:
    if name == "stale":
        log.warning(
            "%d messages of a committed batch are delivered again: their connection was lost "
            "before the ack",
            count,
            extra={"event": "acks_too_late"},
        )

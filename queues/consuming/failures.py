"""Failures that are the fault of a message, as far as one worker saw them.

RabbitMQ's delivery count rises with each failure, but also with each lost connection, ended worker
or consumer timeout while a message is open. It can be too high, never too low. The count here can
be too low, since it is lost with its worker and does not include other workers, and is too high
only if several tasks read the queue. A message is dead-lettered when both counts reach the limit.

A worker that sees a message fail for the first time, and not at its first delivery, takes
RabbitMQ's count as the failures that earlier workers saw, minus the returns that the end of a
worker or of one of its own channels may explain, and up to three quarters of the limit. So a
message that always fails is tried for about as long however often workers are restarted, and a
message that was returned for other reasons still has a quarter of the limit left.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from tiercel.queues.retry import DELIVERY_LIMIT

# A message that keeps failing is retried within minutes: older entries belong to messages that
# other workers settled.
_MOST = 100_000


class FailureBook:
    """Counts failures by body and properties, since RabbitMQ gives messages no identity. Not
    thread-safe.

    Equal messages share an entry; their failures are divided by their number.
    """

    def __init__(
        self, tasks: int = 1, delivery_limit: int = DELIVERY_LIMIT, most: int = _MOST
    ) -> None:
        """``tasks`` is the number of readers of the queue: each sees a share of the redeliveries.

        After ``delivery_limit`` failures the next one is a message's last.
        """
        self._tasks = tasks
        self._most = most
        self._most_before = delivery_limit * 3 // 4
        # Per entry: copies, failures here, and failures that earlier workers saw.
        self._entries: OrderedDict[bytes, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def failed(
        self, body: bytes, properties: Any, delivery_count: int | None, returns: int = 1
    ) -> int:
        """Record a failure, and return how often this message failed before.

        ``returns`` is the number of redeliveries that ended workers and channels may explain, as
        far as known. ``delivery_count`` is RabbitMQ's: 0 at the first delivery, None if the queue
        does not count. In that case each worker counts alone, and a message may fail up to the
        limit times the number of tasks.
        """
        key = _key(body, properties)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = [0, 0, self._before(delivery_count, returns)]
        self._entries.move_to_end(key)
        if delivery_count == 0 or not entry[0]:
            entry[0] += 1
        found = self._count(entry, delivery_count)
        entry[1] += 1
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return found

    def so_far(self, body: bytes, properties: Any, delivery_count: int | None) -> int:
        """Return how often this message failed, as ``failed`` would, without recording a failure.

        A message without an entry has no failures: it may have been returned only for other
        reasons.
        """
        return self._count(self._entries.get(_key(body, properties), [1, 0, 0]), delivery_count)

    def _before(self, delivery_count: int | None, returns: int) -> int:
        return min(max(0, (delivery_count or 0) - returns), self._most_before)

    def _count(self, entry: list[int], delivery_count: int | None) -> int:
        copies, failures, before = entry
        here = failures // copies
        if delivery_count is None:
            return here
        return min(delivery_count, before + here * self._tasks)

    def forget(self, body: bytes, properties: Any) -> None:
        """Forget a message that is settled."""
        if not self._entries:
            return
        key = _key(body, properties)
        entry = self._entries.get(key)
        if entry is None:
            return
        copies, failures, before = entry
        if copies <= 1:
            del self._entries[key]
        else:
            self._entries[key] = [copies - 1, failures - failures // copies, before]


def _key(body: bytes, properties: Any) -> bytes:
    said = [
        getattr(properties, name, None)
        for name in ("message_id", "correlation_id", "timestamp", "type")
    ]
    digest = blake2b(body, digest_size=16)
    digest.update(repr(said).encode("utf-8", "surrogatepass"))
    return digest.digest()

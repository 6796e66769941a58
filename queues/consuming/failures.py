"""The failures that are a message's own, as one worker saw them.

RabbitMQ's delivery count rises with each failure, but also with each connection, worker or consumer
timeout that ends around a message. It can be too high and never too low. The count here can be too
low, since a worker forgets when it ends and does not know of the others, and is too high only where
several tasks read the queue. A message is dead-lettered when both counts reach the limit.

A worker that sees a message fail for the first time, and not at its first delivery, takes
RabbitMQ's count for the failures that workers before it saw: without the returns that may have been
the end of a worker or of one of its own channels, and up to three quarters of the limit. So a
message that always fails is tried for about as long however often workers are restarted, and one
that came back for other reasons still has a quarter of its failures to itself.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from tiercel.queues.retry import DELIVERY_LIMIT

# A message that fails again and again is retried within minutes: older entries belong to messages
# that other workers settled.
_MOST = 100_000


class FailureBook:
    """Counts failures by body and properties, since RabbitMQ gives messages no identity. Not
    thread-safe.

    Equal messages share an entry; their failures are divided by their number.
    """

    def __init__(
        self, tasks: int = 1, delivery_limit: int = DELIVERY_LIMIT, most: int = _MOST
    ) -> None:
        """``tasks`` read the queue: each sees a share of the messages that come back.

        After ``delivery_limit`` failures one more is a message's last.
        """
        self._tasks = tasks
        self._most = most
        self._most_before = delivery_limit * 3 // 4
        # Per entry: copies, failures here, and failures that workers before this one saw.
        self._entries: OrderedDict[bytes, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def failed(
        self, body: bytes, properties: Any, delivery_count: int | None, returns: int = 1
    ) -> int:
        """Note a failure, and return how often this message failed before.

        ``returns`` is the number of deliveries that ends of workers and channels may explain, as
        far as known. ``delivery_count`` is RabbitMQ's: 0 at the first delivery, None where the
        queue does not count. Then each worker counts for itself, and a message may fail up to the
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
        """Return how often this message failed, as ``failed`` would, without noting a failure.

        A message without an entry had none: it may have come back for other reasons alone.
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

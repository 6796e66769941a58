"""Failures of each message, as one worker saw them: those that are the message's own.

RabbitMQ's delivery count rises with each failure, but also with each connection, worker or consumer
timeout that ends around a message. It can be too high and never too low. What is counted here can
be too low, for a worker forgets when it ends and does not know of the others, and is too high only
where several tasks are reckoned with. A message is dead-lettered when both say so.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any

# A message that fails again and again is retried within minutes: older entries are of messages that
# other workers settled.
_MOST = 100_000


class FailureBook:
    """Counts failures by what a message says, for RabbitMQ gives it no identity. Not thread-safe.

    Messages that are equal in body and identity share an entry; their failures are divided by their
    number.
    """

    def __init__(self, tasks: int = 1, most: int = _MOST) -> None:
        """``tasks`` read the queue: each sees a share of the messages that come back."""
        self._tasks = tasks
        self._most = most
        # Copies and failures of each.
        self._entries: OrderedDict[bytes, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def failed(self, body: bytes, properties: Any, delivery_count: int | None) -> int:
        """Note a failure, and return how often this message failed before.

        ``delivery_count`` is RabbitMQ's: 0 at the first delivery, None where the queue does not
        count. Then each worker counts for itself, and a message has at most as many failures as it
        is allowed, times the number of tasks.
        """
        key = _key(body, properties)
        entry = self._entries.setdefault(key, [0, 0])
        self._entries.move_to_end(key)
        if delivery_count == 0 or not entry[0]:
            entry[0] += 1
        before = entry[1] // entry[0]
        entry[1] += 1
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return before if delivery_count is None else min(delivery_count, before * self._tasks)

    def so_far(self, body: bytes, properties: Any, delivery_count: int | None) -> int:
        """Return how often this message failed, as ``failed`` would, without noting a failure."""
        copies, failures = self._entries.get(_key(body, properties), (1, 0))
        before = failures // copies
        return before if delivery_count is None else min(delivery_count, before * self._tasks)

    def forget(self, body: bytes, properties: Any) -> None:
        """Forget a message that is settled."""
        if not self._entries:
            return
        key = _key(body, properties)
        entry = self._entries.get(key)
        if entry is None:
            return
        copies, failures = entry
        if copies <= 1:
            del self._entries[key]
        else:
            self._entries[key] = [copies - 1, failures - failures // copies]


def _key(body: bytes, properties: Any) -> bytes:
    said = [
        getattr(properties, name, None)
        for name in ("message_id", "correlation_id", "timestamp", "type")
    ]
    digest = blake2b(body, digest_size=16)
    digest.update(repr(said).encode("utf-8", "surrogatepass"))
    return digest.digest()

"""The one subscription of a channel to its queue, begun and ended as the prefetch changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Subscription:
    """A consumer of the broker's, or none. All of it runs on the I/O thread.

    Quorum queues know no other way to a new prefetch than a new consumer. What came over one that ended
    stays open on the channel.
    """

    def __init__(
        self,
        channel: Any,
        queue: str,
        tag: str,
        *,
        on_message: Callable[[Any, Any, Any, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        """Consumer tags begin with ``tag``. After ``end`` the broker sends no more from ``on_end`` on."""
        self._channel = channel
        self._queue = queue
        self._tag = tag
        self._on_message = on_message
        self._on_end = on_end
        self._begun = 0
        self.consumer_tag: str | None = None
        self.prefetch = 0
        """0: there is none."""
        self.ending = False
        """Messages may still come, and another one cannot begin yet."""

    @property
    def lost(self) -> bool:
        """It is gone without a word."""
        return self.consumer_tag is not None and self.consumer_tag not in self._channel.consumer_tags

    def begin(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self._begun += 1
        tag = f"{self._tag}.{self._begun}"
        self._channel.basic_qos(prefetch_count=prefetch)
        self.consumer_tag = self._channel.basic_consume(self._queue, self._on_message, consumer_tag=tag)

    def end(self) -> None:
        self.ending = True
        tag = self.consumer_tag
        self.consumer_tag = None
        self._channel.basic_cancel(tag, callback=self._ended)
        # By itself pika would reject with requeue what still comes before the cancel-ok, which counts as
        # a failed delivery of messages that no bolt has seen. This way they come to on_message.
        self._channel._cancelled.discard(tag)  # noqa: SLF001

    def _ended(self, _frame: Any) -> None:
        self.ending = False
        self.prefetch = 0
        self._on_end()

"""The consumer that a channel has at the broker: begun, ended, and followed by another one when the
prefetch changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

# A broker that has a message and may send it does so in milliseconds.
_QUIET_S = 0.25
_WITHHOLD_S = 0.05


class BrokerConsumer:
    """A consumer of the broker's, or none.

    All of it runs on the I/O thread; times are monotonic seconds.

    Quorum queues know no other way to a new prefetch than a new consumer. So the next one
    subscribes, and the one before it is cancelled after that: a queue always has one, and is not
    taken for unused (auto-delete, ``expires``). Meanwhile both are sent messages, each up to its
    own prefetch. What came over one that ended stays open on the channel. What is on its way to
    one that is cancelled, a quorum queue takes back, and it counts that as a return. So the cancel
    waits until nothing is on its way (``is_clear``). Where more is wanted, and the broker has sent
    half of what it may, acks are withheld for a moment, so that it soon has sent all. Where little
    comes, withheld acks would only be late: the cancel comes when the prefetch is reached.
    """

    def __init__(  # noqa: PLR0913 - one consumer's settings and callbacks
        self,
        channel: Any,
        queue: str,
        tag: str,
        *,
        on_message: Callable[[Any, Any, Any, bytes], None],
        on_change: Callable[[], None],
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Consumer tags begin with ``tag``; ``arguments`` are those of ``basic.consume``.

        ``on_change`` is called when the broker has answered. After ``end`` it sends no more from
        then on.
        """
        self._channel = channel
        self._queue = queue
        self._tag = tag
        self._on_message = on_message
        self._on_change = on_change
        self._arguments = arguments
        self._begun = 0
        self.consumer_tag: str | None = None
        # The one that is to be cancelled when nothing is on its way to it, and its prefetch.
        self._before: str | None = None
        self._before_prefetch = 0
        self._cancelling: set[str] = set()
        self._stirred_s = 0.0
        # When the next one was subscribed.
        self._change_since: float | None = None
        self._is_busy = False
        # That of the newest; 0: there is none.
        self.prefetch = 0
        # Messages may still come, and another one cannot begin yet.
        self.ending = False

    @property
    def changing(self) -> bool:
        """There is another one beside the newest."""
        return self._before is not None or bool(self._cancelling)

    @property
    def lost(self) -> bool:
        """One is gone without a word."""
        tags = {self.consumer_tag, self._before} - {None}
        return not tags.issubset(self._channel.consumer_tags)

    def stirred(self, now: float) -> None:
        """Note that a message came, or that the broker was told of one that is settled and
        may send the next.
        """
        self._stirred_s = now

    def is_clear(self, unsettled: int, now: float) -> bool:
        """Tell whether nothing is on its way to the one before the newest.

        ``unsettled``: number of messages that came over it and that the broker takes for not
        settled. The broker may send no more, or it could have sent more and has not for a while, so
        that it has nothing.
        """
        if self._before is None or self._change_since is None:
            return False
        self._is_busy = 2 * unsettled >= self._before_prefetch
        return unsettled >= self._before_prefetch or now - self._stirred_s >= _QUIET_S

    def withholds_acks(self, now: float) -> bool:
        """Tell whether acks wait, since each lets the broker send one more.

        Once per change, and briefly.
        """
        since = self._change_since
        grows = self.prefetch > self._before_prefetch
        return grows and self._is_busy and since is not None and now - since < _WITHHOLD_S

    def begin(self, prefetch: int, now: float) -> None:
        """Subscribe, beside the one that there is, if any."""
        self._before, self._before_prefetch = self.consumer_tag, self.prefetch
        self.prefetch = prefetch
        self._stirred_s = now
        self._begun += 1
        self.consumer_tag = f"{self._tag}.{self._begun}"
        self._channel.basic_qos(prefetch_count=prefetch)
        self._channel.basic_consume(
            self._queue,
            self._on_message,
            consumer_tag=self.consumer_tag,
            arguments=dict(self._arguments),
            callback=lambda _frame: self._subscribed(),
        )

    def retire(self) -> None:
        """Cancel the one before the newest."""
        self._cancel(self._before)
        self._before = self._change_since = None
        self._is_busy = False

    def end(self) -> None:
        """Cancel all that there are."""
        self.ending = True
        self.retire()
        self._cancel(self.consumer_tag)
        self.consumer_tag = None

    def _subscribed(self) -> None:
        if self._before is not None:
            self._change_since = self._stirred_s
            self._on_change()

    def _cancel(self, tag: str | None) -> None:
        if tag is None:
            return
        self._cancelling.add(tag)
        # pika calls it for each cancel-ok, whichever consumer that is about.
        self._channel.basic_cancel(tag, callback=self._cancelled)
        # By itself pika would reject with requeue what still comes before the cancel-ok,
        # which counts as a failed delivery of messages that no bolt has seen. This way they
        # come to on_message.
        self._channel._cancelled.discard(tag)  # noqa: SLF001

    def _cancelled(self, frame: Any) -> None:
        self._cancelling.discard(frame.method.consumer_tag)
        if self._cancelling:
            return
        if self.ending:
            self.ending = False
            self.prefetch = 0
        self._on_change()

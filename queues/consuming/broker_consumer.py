"""The one consumer that a channel has at the broker, begun and ended as the prefetch changes."""

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

    Quorum queues know no other way to a new prefetch than a new consumer. What came over one that
    ended stays open on the channel. What is on its way to one that is cancelled, a quorum queue
    takes back, and it counts that as a return. So a change waits until nothing is on its way
    (``is_clear``). Where more is wanted, and the broker has sent half of what it may, acks are
    withheld for a moment, so that it soon has sent all. Where little comes, withheld acks would
    only be late: the change is made when it is needed.
    """

    def __init__(  # noqa: PLR0913 - one consumer's settings and callbacks
        self,
        channel: Any,
        queue: str,
        tag: str,
        *,
        on_message: Callable[[Any, Any, Any, bytes], None],
        on_end: Callable[[], None],
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Consumer tags begin with ``tag``; ``arguments`` are those of ``basic.consume``.

        After ``end`` the broker sends no more from ``on_end`` on.
        """
        self._channel = channel
        self._queue = queue
        self._tag = tag
        self._on_message = on_message
        self._on_end = on_end
        self._arguments = arguments
        self._begun = 0
        self.consumer_tag: str | None = None
        self._stirred_s = 0.0
        self._change_since: float | None = None
        self._grows = False
        self._is_busy = False
        # 0: there is none.
        self.prefetch = 0
        # Messages may still come, and another one cannot begin yet.
        self.ending = False

    @property
    def lost(self) -> bool:
        """It is gone without a word."""
        return (
            self.consumer_tag is not None and self.consumer_tag not in self._channel.consumer_tags
        )

    def stirred(self, now: float) -> None:
        """Note that a message came, or that the broker was told of one that is settled and
        may send the next.
        """
        self._stirred_s = now

    def keep(self) -> None:
        """Forget about a change: the prefetch is what it should be."""
        self._change_since = None

    def is_clear(self, wanted: int, unsettled: int, now: float) -> bool:
        """Tell whether nothing is on its way, where another prefetch is wanted.

        ``unsettled``: so many that came over this consumer are not settled, as far as the broker
        knows. It may send no more, or could have and has not for so long that it has nothing.
        """
        if self._change_since is None:
            self._change_since = now
        self._grows = wanted > self.prefetch
        self._is_busy = 2 * unsettled >= self.prefetch
        return unsettled >= self.prefetch or now - self._stirred_s >= _QUIET_S

    def withholds_acks(self, now: float) -> bool:
        """Tell whether acks wait, since each lets the broker send one more.

        Once per change, and briefly.
        """
        since = self._change_since
        return self._grows and self._is_busy and since is not None and now - since < _WITHHOLD_S

    def begin(self, prefetch: int, now: float) -> None:
        self.prefetch = prefetch
        self._stirred_s = now
        self._begun += 1
        tag = f"{self._tag}.{self._begun}"
        self._channel.basic_qos(prefetch_count=prefetch)
        self.consumer_tag = self._channel.basic_consume(
            self._queue,
            self._on_message,
            consumer_tag=tag,
            arguments=dict(self._arguments),
        )

    def end(self) -> None:
        self.ending = True
        self._change_since = None
        tag = self.consumer_tag
        self.consumer_tag = None
        self._channel.basic_cancel(tag, callback=self._ended)
        # By itself pika would reject with requeue what still comes before the cancel-ok,
        # which counts as a failed delivery of messages that no bolt has seen. This way they
        # come to on_message.
        self._channel._cancelled.discard(tag)  # noqa: SLF001

    def _ended(self, _frame: Any) -> None:
        self.ending = False
        self.prefetch = 0
        self._on_end()

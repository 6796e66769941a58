"""The acks of one channel: many in one, where that delays none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiercel.queues.broker.link import Link
from tiercel.queues.consuming.delivery_tags import AckBook

# Each single ack is an entry in the log of a quorum queue. Few of them leave at once; of many, most
# are part of a contiguous prefix some milliseconds later, which is one ack.
_FEW = 16
_PATIENCE_S = 0.1


class Acks:
    """Sends what ``book`` says is finished. All of it runs on the I/O thread."""

    def __init__(self, channel: Any, link: Link, sent: Callable[[], None]) -> None:
        """``sent`` is called when acks have left."""
        self.book = AckBook()
        self._channel = channel
        self._link = link
        self._sent = sent
        self._later: object | None = None

    def send(self, *, everything: bool = False) -> None:
        """Send what is finished; much that is not contiguous waits for a moment,
        unless ``everything``.
        """
        few = everything or self.book.finished <= _FEW
        self._take(singles=few)
        if self.book.finished and self._later is None:
            self._later = self._link.later(_PATIENCE_S, self._now)

    def void(self) -> None:
        """The channel is gone."""
        if self._later is not None:
            self._link.forget(self._later)
            self._later = None

    def _now(self) -> None:
        self._later = None
        if self._channel.is_open:
            self._take(singles=True)

    def _take(self, *, singles: bool) -> None:
        acks = self.book.take(singles=singles)
        for ack in acks:
            self._channel.basic_ack(ack.tag, multiple=ack.multiple)
        if acks:
            self._sent()

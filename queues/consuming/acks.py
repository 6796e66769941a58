"""Acknowledgements: one ``multiple`` for the contiguous finished prefix, single ones above it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from tiercel.queues.broker.link import Link

log = logging.getLogger(__name__)

# Each single ack is an entry in the log of a quorum queue. Few of them leave at once; of many, most
# are part of a contiguous prefix some milliseconds later, which is one ack.
_FEW = 16
_PATIENCE_S = 0.1


class Ack(NamedTuple):
    """One ``basic.ack``."""

    tag: int
    # Covers every tag up to this one; all of them are finished, or were settled on the wire before.
    multiple: bool


class AckBook:
    """The delivery tags of one channel. Not thread-safe; a value of the channel's I/O thread.

    A tag is *opened* when its message comes, then either *finished* (to be acked by the next
    ``take``) or *closed* (rejected or nacked on the wire by the caller, before the next ``take``).
    Settling a tag twice would make the broker close the channel, so the second time is refused with
    False. It remembers open tags only, however long one of them stays open.
    """

    def __init__(self) -> None:
        self._last = 0
        # Every tag below is settled, or acked by the next ``take``.
        self._low = 1
        self._open: set[int] = set()
        self._finished: list[int] = []
        # Tags that the broker takes for not settled: of messages that came over its newest
        # consumer, and over the one before it.
        self._newest: set[int] = set()
        self._before: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unsettled_before(self) -> int:
        """Number of messages that came over the consumer before the last ``mark`` and that the
        broker does not know to be settled.
        """
        return len(self._before)

    def mark(self) -> None:
        """Note that another consumer begins at the broker, the newest from now on."""
        self._before = self._newest
        self._newest = set()

    def is_of_newest(self, tag: int) -> bool:
        """Return True if this message, which is not settled, came over the newest consumer."""
        return tag in self._newest

    def open(self, tag: int, *, newest: bool = True) -> None:
        """Note a message that came over the newest consumer, or the one before it.

        Tags rise; a tag that is left out was never delivered and counts as settled.
        """
        self._last = tag
        self._open.add(tag)
        (self._newest if newest else self._before).add(tag)

    def finish(self, tag: int) -> bool:
        """Have a tag acked by the next ``take``; False if it is not open."""
        if tag not in self._open:
            return False
        self._open.remove(tag)
        self._finished.append(tag)
        return True

    def close(self, tag: int) -> bool:
        """Note that a tag was settled on the wire some other way; False if it is not open."""
        if tag not in self._open:
            return False
        self._open.remove(tag)
        self._newest.discard(tag)
        self._before.discard(tag)
        return True

    @property
    def finished(self) -> int:
        """Number of messages that wait for ``take`` to ack them."""
        return len(self._finished)

    def take(self, *, singles: bool = True) -> list[Ack]:
        """Return the acks to send now, in order; each finished tag is covered exactly once.

        Without ``singles`` only the contiguous prefix; finished tags above it may be part of a
        later prefix.
        """
        if not self._finished:
            return []
        finished = self._finished
        low = self._low
        # It only rises: each tag is looked at once in the life of a channel.
        while low <= self._last and low not in self._open:
            low += 1
        self._low = low
        prefix = [tag for tag in finished if tag < low]
        above = [tag for tag in finished if tag >= low]
        self._finished = [] if singles else above
        single = [Ack(tag, multiple=False) for tag in above] if singles else []
        for tags in (self._newest, self._before):
            tags.difference_update(finished if singles else prefix)
        if not prefix:
            return single
        # The broker refuses a multiple whose own tag is settled already: its highest tag must
        # be a finished one.
        return [Ack(max(prefix), multiple=len(prefix) > 1), *single]


class Acks:
    """Sends the acks of the finished messages in ``book``. All of it runs on the I/O thread."""

    def __init__(self, channel: Any, link: Link, sent: Callable[[], None]) -> None:
        """``sent`` is called when acks have left."""
        self.book = AckBook()
        self._channel = channel
        self._link = link
        self._sent = sent
        self._later: object | None = None

    def send(self, *, everything: bool = False) -> None:
        """Send the acks of finished messages; many that are not contiguous wait for a moment,
        unless ``everything``.
        """
        few = everything or self.book.finished <= _FEW
        self._take(singles=few)
        if self.book.finished and self._later is None:
            self._later = self._link.later(_PATIENCE_S, self._now)

    def void(self) -> None:
        """Forget the timer: the channel is gone."""
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
            # Step 9 of docs/one-message.md.
            log.debug(
                "9. delivery tag %d%s is acked to RabbitMQ",
                ack.tag,
                " and all before it" * ack.multiple,
                extra={"event": "message_step"},
            )
            self._channel.basic_ack(ack.tag, multiple=ack.multiple)
        if acks:
            self._sent()

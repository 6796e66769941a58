"""Decides which acknowledgements to send: one ``multiple`` for the contiguous finished prefix, one
by one above it.
"""

from __future__ import annotations

from typing import NamedTuple


class Ack(NamedTuple):
    """One ``basic.ack``."""

    tag: int
    # Covers every tag up to this one. All of them are finished, or were settled on the wire before.
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
        # Not settled as far as the broker knows: what came over the newest of the broker's
        # consumers, and what came over the one before it.
        self._newest: set[int] = set()
        self._before: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unsettled_before(self) -> int:
        """Messages that came over the consumer before the last ``mark`` and that the broker does
        not know to be settled.
        """
        return len(self._before)

    def mark(self) -> None:
        """Another consumer of the broker's begins, and is the newest from now on."""
        self._before = self._newest
        self._newest = set()

    def is_of_newest(self, tag: int) -> bool:
        """Return True if this message, which is not settled, came over the newest consumer."""
        return tag in self._newest

    def open(self, tag: int, *, newest: bool = True) -> None:
        """A message came over the newest consumer, or the one before it.

        Tags rise; what is left out was never delivered and counts as settled.
        """
        self._last = tag
        self._open.add(tag)
        (self._newest if newest else self._before).add(tag)

    def finish(self, tag: int) -> bool:
        """Ack it with the next ``take``; False if it is not open."""
        if tag not in self._open:
            return False
        self._open.remove(tag)
        self._finished.append(tag)
        return True

    def close(self, tag: int) -> bool:
        """It was settled on the wire some other way; False if it is not open."""
        if tag not in self._open:
            return False
        self._open.remove(tag)
        self._newest.discard(tag)
        self._before.discard(tag)
        return True

    @property
    def finished(self) -> int:
        """Messages that wait for ``take`` to ack them."""
        return len(self._finished)

    def take(self, *, singles: bool = True) -> list[Ack]:
        """The acks to send now, in this order; each finished tag is covered exactly once.

        Without ``singles`` only the contiguous prefix; what is finished above it may be
        part of a later one.
        """
        if not self._finished:
            return []
        finished = self._finished
        low = self._low
        # It only rises: in the life of a channel each tag is looked at once.
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

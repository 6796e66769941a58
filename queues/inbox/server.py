"""The servers that inboxes in Redis are given: the opener connects, and translates the errors.

``acker.connection.server`` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from tiercel.queues.inbox.contract import Effect

T = TypeVar("T")


class Script(Protocol):
    """A script, prepared on one server."""

    def __call__(
        self,
        keys: Sequence[str],
        args: Sequence[Any],
        read: Callable[[Any], T],
        verb: str,
        when_full: Any = None,
    ) -> Effect[T]:
        """Prepare one call; ``read`` turns the server's reply into the effect's, and may raise.

        ``when_full``, an effect of this server, is made instead where its memory is full.
        """
        ...


class InboxServer(Protocol):
    """One Redis server. Thread-safe, hashable; equal servers can be sent to in one round trip."""

    def script(self, text: str) -> Script:
        """Prepare a script."""
        ...

    def command(self, *words: Any, read: Callable[[Any], T], verb: str) -> Effect[T]:
        """Prepare a plain command that may be repeated."""
        ...

    def perform(self, effects: Sequence[Any]) -> list[Any]:
        """Make prepared calls of this server in order, in one round trip."""
        ...

    def wait(self, keys: Sequence[str], most: timedelta, verb: str) -> bool:
        """Wait at most ``most``, or less, for something in one of these lists, and take it out."""
        ...


class InboxServers(Protocol):
    """All servers of a topology, in an order that stays."""

    def __len__(self) -> int: ...

    def at(self, number: int, key: str) -> InboxServer:
        """Return the server with this number, or that of the key in a cluster."""
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...

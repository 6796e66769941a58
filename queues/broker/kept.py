"""One connection for many moments: for those that look at the broker again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pika.exceptions import AMQPError

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connect, translated
from tiercel.queues.errors import BrokerUnavailableError, QueuesError

T = TypeVar("T")


class KeptConnection:
    """Opened when it is used first, and again where it has broken since. Not thread-safe."""

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._name = name
        self._connection: Any = None

    def use(self, ask: Callable[[Any], T]) -> T:
        """Return ``ask(connection)`` of a ``BlockingConnection``; it may be called twice.

        Raises BrokerUnavailableError, BrokerRefusedError, and what ``ask`` raises of ours.
        """
        if self._connection is not None:
            # It may have been closed since the last time: nothing reads from it between two.
            with suppress(BrokerUnavailableError):
                return self._asked(ask)
        self._connection = connect(self._address, self._name)
        return self._asked(ask)

    def close(self) -> None:
        """Close it. Idempotent."""
        connection = self._connection
        self._connection = None
        if connection is not None and connection.is_open:
            with suppress(AMQPError):  # broken while closing: there is nothing left to close
                connection.close()

    def _asked(self, ask: Callable[[Any], T]) -> T:
        try:
            with translated(self._address):
                return ask(self._connection)
        except QueuesError:
            self.close()
            raise

"""Depths of queues: messages that are waiting, being processed, or dead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from pika.exceptions import AMQPError

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import answered, connect, translated
from tiercel.queues.broker.management import ManagementSilentError, managed, read_alarms
from tiercel.queues.errors import BrokerUnavailableError, QueueMissingError, QueuesError
from tiercel.queues.outage import Spared
from tiercel.queues.retry import dead_letter_queue

# Seconds between updates of RabbitMQ's statistics, by default.
LAG_S = 5
# Seconds for which a silent management interface is not asked again: each queue would wait for it.
_LEFT_ALONE_S = 10
# Seconds in which RabbitMQ must answer a request: Prometheus waits ten for the monitor's figures.
_PATIENCE_S = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """One queue at one moment.

    * ``ready``: waiting messages.
    * ``unacked``: messages delivered and not settled.
    * ``delayed``: failed messages that RabbitMQ (4.3 or newer) delivers again after their back-off,
      and messages that a bolt postponed, in delay queues: neither ready nor unacked.
    * ``consumers``: the broker's consumers at the queue.
    * ``in_rate``, ``out_rate``: messages per second published to the queue, and leaving it.
    * ``dead_lettered``: messages in its dead-letter queue; None if it has none.

    ``unacked``, ``delayed`` and the rates come from RabbitMQ's HTTP API: None without it, and up to
    five seconds old with it.
    """

    name: str
    ready: int
    unacked: int | None
    delayed: int | None = None
    consumers: int
    in_rate: float | None = None
    out_rate: float | None = None
    dead_lettered: int | None


class DepthReader:
    """Reads the depths of queues repeatedly, over one connection. Not thread-safe."""

    def __init__(self, amqp_url: str, management_url: str | None = None) -> None:
        """``management_url`` is like ``http://host:15672``; without a user and a password it
        gets the AMQP URL's. Its figures are some seconds old, so only figures that AMQP lacks are
        read from it.
        """
        self._amqp_url = amqp_url
        self._management_url = management_url
        # Opened at the first look, and again after it broke.
        self._connection: Any = None
        self._broker = Spared(BrokerUnavailableError)
        self._silent_until = 0.0
        # Why the figures of the management interface are missing, in one line; empty: they are not.
        self.management_problem = ""
        self._alarms: list[str] = []
        self._alarms_until = 0.0

    def look(self, names: Sequence[str]) -> list[QueueDepth]:
        """Return the depths of the queues that exist, in this order.

        A quorum queue without a leader counts as empty and without consumers, as RabbitMQ reports
        it. Raises AddressError, BrokerUnavailableError, BrokerRefusedError.
        """
        if not names:
            return []
        address = Address.parse(self._amqp_url)
        with self._broker.read():
            found = self._looked(address, names)
        return self._with_more(address, found)

    def reach(self) -> None:
        """Connect, or check the connection. Raises as ``look``."""
        address = Address.parse(self._amqp_url)
        if self._connection is not None:
            with suppress(BrokerUnavailableError), translated(address):
                self._connection.process_data_events(0)
                return
            self.close()
        with self._broker.read():
            self._connect(address)

    def alarms(self) -> list[str]:
        """Return RabbitMQ's alarms, ``memory`` and ``disk``, during which it takes no messages.

        At most five seconds old; empty if there is no management interface, or it does not answer.
        """
        now = time.monotonic()
        if self._management_url is None or now < max(self._silent_until, self._alarms_until):
            return self._alarms
        self._alarms = []
        self._alarms_until = now + LAG_S
        with suppress(ManagementSilentError):
            self._alarms = read_alarms(self._management_url, Address.parse(self._amqp_url))
        return self._alarms

    def close(self) -> None:
        """Close the connection. Idempotent."""
        connection = self._connection
        self._connection = None
        if connection is not None and connection.is_open:
            with suppress(AMQPError):  # broken while closing: there is nothing left to close
                connection.close()

    def _looked(self, address: Address, names: Sequence[str]) -> list[QueueDepth]:
        if self._connection is not None and self._connection.is_open:
            # It may have been closed since the last look: nothing reads from it between looks.
            with suppress(BrokerUnavailableError):
                return self._declared(address, names)
        self._connect(address)
        return self._declared(address, names)

    def _connect(self, address: Address) -> None:
        self._connection = connect(address, "tiercel depths", _PATIENCE_S)

    def _declared(self, address: Address, names: Sequence[str]) -> list[QueueDepth]:
        try:
            with translated(address):
                counter = _Counter(self._connection, address)
                found = [_depth(counter, name) for name in names]
                counter.close()
                return [depth for depth in found if depth is not None]
        except QueuesError:
            self.close()
            raise

    def _with_more(self, address: Address, found: list[QueueDepth]) -> list[QueueDepth]:
        """Add the figures of the management interface, unless it was silent just now."""
        if self._management_url is None or time.monotonic() < self._silent_until:
            return found
        told: dict[str, dict[str, Any]] = {}
        try:
            for depth in found:
                told[depth.name] = managed(self._management_url, address, depth.name)
            self.management_problem = ""
        except ManagementSilentError as error:
            self._silent_until = time.monotonic() + _LEFT_ALONE_S
            self.management_problem = str(error)
        return [replace(depth, **told.get(depth.name, {})) for depth in found]


def depths(
    amqp_url: str, names: Sequence[str], management_url: str | None = None
) -> list[QueueDepth]:
    """Return the depths of these queues, in this order, as ``DepthReader`` does.

    Raises QueueMissingError too.
    """
    with closing(DepthReader(amqp_url, management_url)) as reader:
        found = reader.look(names)
    require(amqp_url, names, found)
    return found


def require(amqp_url: str, names: Sequence[str], found: Sequence[QueueDepth]) -> None:
    """Raise QueueMissingError if one of ``names`` was not found."""
    there = {depth.name for depth in found}
    for name in names:
        if name not in there:
            raise QueueMissingError(
                f"there is no queue {name!r} on {Address.parse(amqp_url)}; publish to it or start "
                "its topology first"
            )


def _depth(counter: _Counter, name: str) -> QueueDepth | None:
    work = counter.count(name)
    if work is None:
        return None
    dead = counter.count(dead_letter_queue(name))
    return QueueDepth(
        name=name,
        ready=work[0],
        unacked=None,
        consumers=work[1],
        dead_lettered=None if dead is None else dead[0],
    )


class _Counter:
    """Counts the messages of queues on one channel, until it meets a queue that is missing.

    To open and to close a channel takes as long as a count, which matters for many queues at a
    broker far away.
    """

    def __init__(self, connection: Any, address: Address) -> None:
        self._connection = connection
        self._address = address
        self._channel: Any = None

    def count(self, name: str) -> tuple[int, int] | None:
        """Count the ready messages, and the consumers; return None if there is no such queue."""
        try:
            with translated(self._address), answered(self._connection, _PATIENCE_S):
                if self._channel is None:
                    self._channel = self._connection.channel()
                method = self._channel.queue_declare(name, passive=True).method
                if not method.message_count and not method.consumer_count:
                    # RabbitMQ also answers 0 for a quorum queue whose leader took longer than
                    # 250 ms to answer.
                    method = self._channel.queue_declare(name, passive=True).method
        except QueueMissingError:
            # RabbitMQ has closed the channel.
            self._channel = None
            return None
        return method.message_count, method.consumer_count

    def close(self) -> None:
        if self._channel is not None:
            with translated(self._address), answered(self._connection, _PATIENCE_S):
                self._channel.close()

"""Depths of queues: messages that wait, are being worked on, and are dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pika.exceptions import ChannelClosedByBroker

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected, translate
from tiercel.queues.broker.declare import dead_letter_queue
from tiercel.queues.broker.management import Managed, ManagementSilentError, managed
from tiercel.queues.errors import QueueMissingError


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """One queue at one moment. What only the management interface tells is None without it."""

    name: str
    # Messages that wait.
    ready: int
    # Messages that are delivered and not settled.
    unacked: int | None
    # Failed messages that RabbitMQ (4.3 or newer) delivers again after their back-off, and those
    # that a bolt wants later, in its delay queues: neither ready nor unacked.
    delayed: int | None = None
    consumers: int
    # Messages published per second.
    in_rate: float | None = None
    # Messages that left per second.
    out_rate: float | None = None
    # Messages in its dead-letter queue; None if it has none.
    dead_lettered: int | None


def depths(
    amqp_url: str, names: Sequence[str], management_url: str | None = None
) -> list[QueueDepth]:
    """The depths of these queues, in this order.

    A quorum queue without a leader counts as empty and without consumers, for that is what RabbitMQ
    says. ``management_url`` is like ``http://host:15672``; user and password are those of the AMQP
    URL unless it has its own. Its numbers are some seconds old, so it is only asked for what AMQP
    does not tell. Raises QueueMissingError, AddressError, BrokerUnavailableError,
    BrokerRefusedError.
    """
    address = Address.parse(amqp_url)
    found = _declared(address, names)
    _refuse_missing(address, names, found)
    return [_with_more(depth, _more(management_url, address, depth.name)) for depth in found]


def survey(
    amqp_url: str, names: Sequence[str], management_url: str | None = None
) -> list[QueueDepth]:
    """The depths of those of these queues that there are: for monitors, which look again and again.

    The management interface tells all of them without a connection of AMQP's; where it does not
    answer, AMQP does. Raises AddressError, BrokerUnavailableError, BrokerRefusedError.
    """
    address = Address.parse(amqp_url)
    if management_url is not None:
        try:
            looked = [_managed(management_url, address, name) for name in names]
        except ManagementSilentError:
            pass
        else:
            return [depth for depth in looked if depth is not None]
    return _declared(address, names)


def require(amqp_url: str, names: Sequence[str], found: Sequence[QueueDepth]) -> None:
    """Raises QueueMissingError if one of ``names`` was not found."""
    _refuse_missing(Address.parse(amqp_url), names, found)


def _refuse_missing(address: Address, names: Sequence[str], found: Sequence[QueueDepth]) -> None:
    there = {depth.name for depth in found}
    for name in names:
        if name not in there:
            raise QueueMissingError(
                f"there is no queue {name!r} on {address}; publish to it or start its topology "
                "first"
            )


def _declared(address: Address, names: Sequence[str]) -> list[QueueDepth]:
    found = []
    with connected(address, "tiercel depths") as connection:
        for name in names:
            work = _look(connection, address, name)
            dead = _look(connection, address, dead_letter_queue(name))
            if work is not None:
                dead_lettered = None if dead is None else dead[0]
                found.append(
                    QueueDepth(
                        name=name,
                        ready=work[0],
                        unacked=None,
                        consumers=work[1],
                        dead_lettered=dead_lettered,
                    )
                )
    return found


def _look(connection: Any, address: Address, name: str) -> tuple[int, int] | None:
    """Count the messages that are ready, and the consumers; None if there is no such queue."""
    channel = connection.channel()
    try:
        method = channel.queue_declare(name, passive=True).method
        if not method.message_count and not method.consumer_count:
            # RabbitMQ says the same of a quorum queue whose leader took longer than
            # 250 ms to answer.
            method = channel.queue_declare(name, passive=True).method
    except ChannelClosedByBroker as error:
        refusal = translate(error, address)
        if isinstance(refusal, QueueMissingError):
            return None
        raise refusal from error
    channel.close()
    return method.message_count, method.consumer_count


def _managed(management_url: str, address: Address, name: str) -> QueueDepth | None:
    work = managed(management_url, address, name)
    if work is None:
        return None
    dead = managed(management_url, address, dead_letter_queue(name))
    depth = QueueDepth(
        name=name,
        ready=work.ready,
        unacked=None,
        consumers=work.consumers,
        dead_lettered=None if dead is None else dead.ready + dead.unacked,
    )
    return _with_more(depth, work)


def _more(management_url: str | None, address: Address, name: str) -> Managed | None:
    if management_url is None:
        return None
    try:
        return managed(management_url, address, name)
    except ManagementSilentError:
        return None


def _with_more(depth: QueueDepth, more: Managed | None) -> QueueDepth:
    if more is None:
        return depth
    return replace(
        depth,
        unacked=more.unacked,
        delayed=more.delayed,
        in_rate=more.in_rate,
        out_rate=more.out_rate,
    )

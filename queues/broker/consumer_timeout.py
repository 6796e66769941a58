"""RabbitMQ's consumer timeout: a message that is held longer is taken back, and with it, before
RabbitMQ 4.3, everything that its channel holds.

Nothing tells it to a client. It is 30 minutes, unless ``consumer_timeout`` in rabbitmq.conf, a
policy, an argument of the queue (3.12) or of the consumer (4.3) says otherwise; that of the
consumer counts before all others. See https://www.rabbitmq.com/docs/consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

ARGUMENT = "x-consumer-timeout"

_USUAL = timedelta(minutes=30)
# A message that is done in this time is done well before the usual timeout.
_SHORT = timedelta(minutes=24)
# Much more than is asked for, so that the same argument suits most topologies: a queue's cannot be
# changed. tiercel watches its bolts itself.
_DAY = timedelta(days=1)
_BY_QUEUE_SINCE = (3, 12)
_BY_CONSUMER_SINCE = (4, 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerTimeout:
    """Decision about one queue, some of whose messages are held long."""

    # Those of ``basic.consume``.
    arguments: Mapping[str, int] = field(default_factory=dict)
    # One line about a timeout that is too short, and what to do; empty: it is long enough.
    warning: str = ""


def timeout_arguments(held: timedelta | None, version: tuple[int, int]) -> dict[str, Any]:
    """Return the argument to declare a work queue with, whose messages are held for ``held``.

    None of the queue's own from RabbitMQ 4.3 on: there the consumer says it.
    """
    if held is None or held <= _SHORT or not _BY_QUEUE_SINCE <= version < _BY_CONSUMER_SINCE:
        return {}
    return {ARGUMENT: _enough_ms(held)}


def consumer_timeout(
    held: timedelta | None,
    version: tuple[int, int],
    name: str,
    arguments: Mapping[str, Any] | None,
) -> ConsumerTimeout:
    """Decide about the queue ``name``, which has these arguments; None: they are not known."""
    if held is None:
        return ConsumerTimeout()
    if version >= _BY_CONSUMER_SINCE:
        return ConsumerTimeout(arguments={ARGUMENT: _enough_ms(held)})
    found = (arguments or {}).get(ARGUMENT)
    there = timedelta(milliseconds=found) if isinstance(found, int) else _USUAL
    if held <= (there if found else _SHORT):
        return ConsumerTimeout()
    wanted = _enough_ms(held)
    todo = f"set consumer_timeout = {wanted} in rabbitmq.conf"
    if version >= _BY_QUEUE_SINCE:
        todo = (
            f"run rabbitmqctl set_policy --apply-to queues long-work '^{name}$' "
            f"'{{\"consumer-timeout\": {wanted}}}', or {todo}"
        )
    return ConsumerTimeout(
        warning=f"a bolt may hold a message of queue {name} for {held.total_seconds():.0f} s, and "
        f"RabbitMQ {version[0]}.{version[1]} takes it back after {there.total_seconds():.0f} s "
        f"unless it was told otherwise: {todo}"
    )


def _enough_ms(held: timedelta) -> int:
    return round(max(_DAY, 2 * held).total_seconds() * 1000)

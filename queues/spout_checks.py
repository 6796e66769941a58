"""Checks of a queue spout's settings, and its reasons for refusing a message."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.queues.broker.declare import WorkQueue
from tiercel.queues.errors import BadBodyError, BadPropertyError
from tiercel.queues.message.identity import identity_reader


def check_settings(queue: WorkQueue, prefetch: int, identity: str | Sequence[str] | None) -> None:
    """Raise ValueError for settings that would fail in a worker."""
    if not queue.name or len(queue.dead.encode()) > 255:
        raise ValueError(f"a queue needs a name of 1 to 250 bytes, not {queue.name[:50]!r}")
    if not 1 <= prefetch <= 65535:
        raise ValueError(f"prefetch must be 1 to 65535, not {prefetch}")
    if queue.delivery_limit < 1:
        raise ValueError(f"delivery_limit must be at least 1, not {queue.delivery_limit}")
    if queue.bindings and not queue.declare:
        raise ValueError(
            "declare=False leaves the queue as it is, and bindings bind it: leave one out"
        )
    if identity is not None:
        identity_reader(identity)


def refusal_of(error: Exception) -> str:
    """Return why a message is dead-lettered that could not be decoded, or not be emitted."""
    if isinstance(error, (BadBodyError, BadPropertyError)):
        return str(error)
    if isinstance(error, ValueError):
        return f"does not fit the fields: {error}"
    return f"could not be emitted: {type(error).__name__}: {error}"

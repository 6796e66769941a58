"""One message on its way to a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pika import BasicProperties

from tiercel.queues.errors import QueuesError

Done = Callable[[QueuesError | None], None]


@dataclass(slots=True, eq=False)
class Publication:
    """One message for one queue, through the default exchange."""

    queue: str
    body: bytes
    properties: BasicProperties
    # Called once, on the I/O thread: None when the broker has it, else why not.
    done: Done
    returned: bool = False
    # The queue is declared with these first, once per channel; None: it is there.
    arguments: Mapping[str, Any] | None = None

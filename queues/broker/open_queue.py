"""A queue that is open for a look: its oldest messages are got, and given back in front.

RabbitMQ shows no message where it lies: to look is to have it delivered, and not to settle it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

# From here on what is given back by basic.nack is in front, and was not delivered as far as limits
# are concerned.
FREE_NACK_SINCE = (4, 3)
_RETURNED_S = 2.0


class OpenQueue:
    """A queue that is there. Not thread-safe."""

    def __init__(self, connection: Any, name: str, *, nack_counts: bool) -> None:
        """``connection`` is a ``BlockingConnection``."""
        self.channel = connection.channel()
        self.name = name
        # Of the messages that waited in it when the first of them was got.
        self.count = 0
        self._connection = connection
        self._nack_counts = nack_counts
        self._held = 0

    def got(self, most: int | None) -> Iterator[tuple[Any, Any, bytes]]:
        """Get those that waited at the first, one by one.

        As (method, properties, body) of pika.

        The first of them says how many wait, not a passive declare: to that RabbitMQ answers 0 for
        a quorum queue whose leader is silent for 250 ms.
        """
        number = 0
        while most is None or number < most:
            method, properties, body = self.channel.basic_get(self.name)
            if method is None:
                return
            if number == 0:
                self.count = method.message_count + 1
                most = self.count if most is None else min(most, self.count)
            number += 1
            yield method, properties, body

    def hold(self) -> None:
        """Keep the message that was got last until ``give_back``."""
        self._held += 1

    def give_back(self, gone: int) -> None:
        """Give back what is held; ``gone`` messages that were got are not.

        From RabbitMQ 4.3 on by ``basic.nack``: it does not count, and leaves them in front of
        those that were not got. Before, it counts and puts them behind, and the next look
        would show other messages; the end of the channel counts too, but puts them in front.
        They are there a moment later, so this waits for them; not for long, for another
        process may take them at once.
        """
        if not self._held:
            return
        if not self._nack_counts:
            self.channel.basic_nack(0, multiple=True, requeue=True)
        self.channel.close()
        channel = self._connection.channel()
        until = time.monotonic() + _RETURNED_S
        while time.monotonic() < until:
            if (
                channel.queue_declare(self.name, passive=True).method.message_count
                >= self.count - gone
            ):
                return
            self._connection.sleep(0.02)

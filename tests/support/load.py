"""A steady load: messages with unique numbers, at a fixed rate, until stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Self

from tiercel import Publisher

PATIENCE = timedelta(seconds=120)
_TICK_S = 0.05


class Load:
    """Publishes with confirms, directly to the broker.

    While the broker is down, the load waits, and goes on afterwards.
    """

    def __init__(self, amqp_url: str, queue: str, rate: int, first: int) -> None:
        """``rate`` is in messages per second; numbers start at ``first``."""
        self._url = amqp_url
        self._queue = queue
        self._rate = rate
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        # Messages that the broker has confirmed; known once the load has stopped.
        self.published = range(first, first)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the load, and return when all published messages are confirmed."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        first = self.published.start
        try:
            with Publisher(self._url, patience=PATIENCE) as publisher:
                count = publisher.publish(self._queue, self._bodies(first))
            self.published = range(first, first + count)
        except BaseException as error:  # noqa: BLE001 - raised in ``stop``
            self._error = error

    def _bodies(self, first: int) -> Iterator[bytes]:
        began = time.monotonic()
        count = 0
        while not self._stop.wait(_TICK_S):
            # Messages that could not be published in time are dropped: the broker is offered the
            # rate from now on.
            due = min(int((time.monotonic() - began) * self._rate), count + self._rate)
            for number in range(count, due):
                if self._stop.is_set():
                    return
                yield b'{"number": %d}' % (first + number)
            if due == count + self._rate:
                began = time.monotonic() - due / self._rate
            count = due

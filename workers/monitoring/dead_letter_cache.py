"""Dead letters as they were last read, for any number of pages.

RabbitMQ counts each reading as a delivery, and before 4.3 moves a letter after three of them. So a
queue is read again only when the number of its letters has changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiercel.queues.errors import QueuesError
from tiercel.queues.publishing import dead_letters
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import redact

# Letters per queue, the oldest. Their bodies are kept, at most 64 KiB of each.
SHOWN = 50
PAUSE_S = 5.0
Show = Callable[[str, int], Sequence[DeadLetter]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The oldest dead letters of one queue."""

    letters: Sequence[DeadLetter] = ()
    # RabbitMQ's answer, if it refused.
    problem: str | None = None


NOTHING_LISTED = Listing()


@dataclass(slots=True)
class _Place:
    found: Listing
    # Number of letters, by the depths, at the time of reading.
    depth: int
    looked_at: float


class DeadLetterCache:
    """The dead letters of all queues. Thread-safe."""

    def __init__(
        self, amqp_url: str, show: Show | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show or (lambda queue, limit: dead_letters.show(amqp_url, queue, limit))
        self._clock = clock
        self._looking = threading.Lock()
        self._places: dict[str, _Place] = {}

    def listed(self, queue: str, depth: int | None) -> Listing:
        """Return the letters of a queue that has ``depth`` of them now; None: unknown.

        Reads the queue at most once per five seconds, and only if the number has changed.
        """
        with self._looking:
            place = self._places.get(queue)
            if depth is None or (place is None and not depth):
                return NOTHING_LISTED
            if place is None or self._is_old(place, depth):
                place = self._look(queue, depth)
            return place.found

    def look(self, queue: str) -> Sequence[DeadLetter]:
        """Read the queue now. Raises QueuesError."""
        with self._looking:
            letters = self._show(queue, SHOWN)
            self._keep(queue, Listing(letters=letters), len(letters))
            return letters

    def _is_old(self, place: _Place, depth: int) -> bool:
        if len(place.found.letters) >= SHOWN:
            # More letters, behind the oldest, would not be shown anyway.
            place.depth = max(depth, place.depth)
        if self._clock() < place.looked_at + PAUSE_S:
            return False
        return place.found.problem is not None or depth != place.depth

    def _look(self, queue: str, depth: int) -> _Place:
        try:
            found = Listing(letters=self._show(queue, SHOWN))
        except QueuesError as error:
            found = Listing(problem=redact(str(error)))
        return self._keep(queue, found, depth)

    def _keep(self, queue: str, found: Listing, depth: int) -> _Place:
        place = _Place(found, depth, self._clock())
        self._places[queue] = place
        return place

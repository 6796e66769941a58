"""The contract of presence: which process has a seat in a topology, and its note about itself.

A process takes its seat, renews it again and again, and leaves. A seat that is not renewed lapses:

    seat         holder                     renewed                             lapses after
    the driver   a driver (``Keeper``)      every 0.75 s                        3 s
    spout task   a spout worker             each second (``Orders``)            10 s
    bolt task    an attempt at the task     each second, in the task's inbox    10 s

The third is not a seat of this contract but a field of the inbox (``Inboxes.beat``): attempts and
runs are fenced there, so that one call renews it and returns whether the process may go on.

``RedisPresences`` keeps seats for all processes; ``MemoryPresences`` is its twin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Protocol

# A bolt task whose process was silent for longer has none. Spark restarts a process within two
# seconds.
UNATTENDED_S = 10.0


@dataclass(frozen=True, slots=True)
class Seat:
    """A seat in a topology, which at most one process has."""

    # One word.
    name: str
    # Time after which a seat that is not renewed lapses.
    lasts: timedelta


class Attendant(NamedTuple):
    """The process that has a seat."""

    # One word, drawn by each process.
    name: str
    # A note about itself, one line.
    note: str


class Presences(Protocol):
    """The seats of one topology. Thread-safe.

    Each call is one round trip, atomic, and safe to repeat. Raises RedisUnavailableError,
    RedisRefusedError.

    A seat is lost when it was not renewed in time, or when Redis lost its memory. So for a moment
    two processes may believe that they hold the same seat; ``Lease`` and ``SpoutSeats`` are safe
    when that happens.
    """

    def take(self, seat: Seat, attendant: Attendant, *, by_force: bool = False) -> bool:
        """Take or renew the seat; False if another attendant has it.

        ``by_force`` takes it from that attendant. Also works on a server that is out of memory.
        """
        ...

    def leave(self, seat: Seat, name: str) -> None:
        """Give up the seat. Does nothing to another attendant's seat. Idempotent."""
        ...

    def look(self, seats: Sequence[Seat]) -> list[Attendant | None]:
        """Return the attendant of each seat; None for a free seat."""
        ...

    def draw_run(self, seat: Seat, name: str) -> int | None:
        """Draw the number of a new run; None unless ``name`` has the seat.

        It is higher than every number before, and below 2**53. A repeat draws another number.
        """
        ...

    def close(self) -> None:
        """Release the connection. Idempotent."""
        ...


class MemoryPresences:
    """``Presences`` within one process: the twin in the contract's suite, and the test kit's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[Attendant, float]] = {}
        self._drawn = 0

    def take(self, seat: Seat, attendant: Attendant, *, by_force: bool = False) -> bool:
        with self._lock:
            found = self._found(seat)
            if found is not None and found.name != attendant.name and not by_force:
                return False
            self._taken[seat.name] = attendant, self._clock() + seat.lasts.total_seconds()
            return True

    def leave(self, seat: Seat, name: str) -> None:
        with self._lock:
            if self._has(seat, name):
                del self._taken[seat.name]

    def look(self, seats: Sequence[Seat]) -> list[Attendant | None]:
        with self._lock:
            return [self._found(seat) for seat in seats]

    def draw_run(self, seat: Seat, name: str) -> int | None:
        with self._lock:
            if not self._has(seat, name):
                return None
            self._drawn += 1
            return self._drawn

    def lose(self) -> None:
        """Forget all attendants, as a Redis that restarts empty does."""
        with self._lock:
            self._taken.clear()

    def close(self) -> None:
        pass

    def _has(self, seat: Seat, name: str) -> bool:
        found = self._found(seat)
        return found is not None and found.name == name

    def _found(self, seat: Seat) -> Attendant | None:
        """Return the current attendant. The caller holds the lock."""
        attendant, until = self._taken.get(seat.name, (None, 0.0))
        return attendant if self._clock() < until else None

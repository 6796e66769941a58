"""The contract of control: what people want of a running topology.

``RedisControl`` keeps it for all processes; ``MemoryControl`` is its twin.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from tiercel.workers.control.parallelism import Change

# An order to end lapses: a topology that is started later does not obey it.
KILL_LASTS = timedelta(minutes=1)


class State(enum.Enum):
    """Desired state of a topology."""

    ACTIVE = "active"
    # Spouts emit nothing; what is in flight goes on, and spouts are told what became of it.
    DEACTIVATED = "deactivated"
    # Every process ends, with exit code 0.
    KILLED = "killed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebalance:
    """The last order to rebalance."""

    # Orders so far; 0: there was none.
    number: int = 0
    # Bolt to its number of tasks: what this order and those before it left.
    parallelism: Mapping[str, int] = field(default_factory=dict)


NO_REBALANCE = Rebalance()


class Control(Protocol):
    """One topology's. Best effort and small: readers keep what they read last while this is away.

    Each call is one round trip and safe to repeat. Raises RedisUnavailableError,
    RedisRefusedError.
    """

    def order(self, state: State) -> None:
        """Say what to do from now on.

        KILLED lasts a minute; the others until something else is said, or Redis is emptied.
        """
        ...

    def state(self) -> State | None:
        """Return the last order; None if there was none, or if it is lost."""
        ...

    def ask(self, known: State) -> State | None:
        """Return what ``state`` does.

        If that is None, ``known`` is the state from now on: a Redis that was emptied learns
        it from the spout tasks.
        """
        ...

    def rebalance(self, change: Change) -> None:
        """Have the driver begin a new run, with these numbers of tasks from now on.

        The run is spread over what Spark has now.

        Bolts that are not named keep the number that was ordered before; None takes it back. A
        bolt may be one that the topology does not have, or not yet. Atomic; a repeat is another
        order of the same.
        """
        ...

    def rebalanced(self, known: Rebalance) -> Rebalance:
        """Return the last order to rebalance.

        If there is none, ``known`` is it from now on: a Redis that was emptied learns it
        from the driver.
        """
        ...

    def close(self) -> None:
        """Release the connection. Idempotent."""
        ...


class MemoryControl:
    """``Control`` within one process; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._order: tuple[State, float] | None = None
        self._rebalance = NO_REBALANCE

    def order(self, state: State) -> None:
        with self._lock:
            lasts = KILL_LASTS.total_seconds() if state is State.KILLED else float("inf")
            self._order = state, self._clock() + lasts

    def state(self) -> State | None:
        with self._lock:
            if self._order is None or self._clock() >= self._order[1]:
                return None
            return self._order[0]

    def ask(self, known: State) -> State | None:
        found = self.state()
        if found is None:
            self.order(known)
        return found

    def rebalance(self, change: Change) -> None:
        with self._lock:
            before = self._rebalance
            numbers = {**before.parallelism, **change}
            left = {bolt: number for bolt, number in numbers.items() if number is not None}
            self._rebalance = Rebalance(number=before.number + 1, parallelism=left)

    def rebalanced(self, known: Rebalance) -> Rebalance:
        with self._lock:
            if not self._rebalance.number:
                self._rebalance = known
            return self._rebalance

    def lose(self) -> None:
        """Forget everything, as a Redis that restarts empty does."""
        with self._lock:
            self._order = None
            self._rebalance = NO_REBALANCE

    def close(self) -> None:
        pass

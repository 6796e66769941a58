"""The contract of the lease: which driver runs a topology, and which run the spout workers send to.

``RedisLease`` keeps it for all processes; ``MemoryLease`` is its twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

# A lease that is not renewed for so long lapses, and a driver in reserve takes over. So does one
# that is started again after it was killed: it may wait for its own predecessor's.
LASTS = timedelta(seconds=3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Self-description of the driver that holds the lease."""

    # Drawn by each driver process.
    driver: str
    # The run that spout workers send to; empty while none is ready.
    run: str = ""
    # The topology's in this run, see ``shape_of``: spout workers of another one send nothing.
    shape: str = ""
    # The number of tasks of each bolt in this run: spout workers send to so many.
    parallelism: Mapping[str, int] = field(default_factory=dict)


class Lease(Protocol):
    """One topology's. Each call is one round trip, atomic, and safe to repeat.

    A lease is lost when it was not renewed in time, or when Redis lost its memory. What the driver
    that lost it still does is harmless: inboxes, ledger and states belong to the run with the
    highest number. Raises RedisUnavailableError, RedisRefusedError.
    """

    def take(self, holder: Holder) -> bool:
        """Take the lease, or renew it; False if another driver holds it."""
        ...

    def draw(self, driver: str) -> int | None:
        """Draw the number of a new run; None if the driver does not hold the lease.

        It is higher than that of every run before, so that a run that a driver began after it lost
        the lease has a lower number than its successor's, and is refused wherever runs have
        numbers. Below 2**53. A repeat draws another number.
        """
        ...

    def leave(self, driver: str) -> None:
        """Give the lease up. Does nothing to another driver's."""
        ...

    def holder(self) -> Holder | None:
        """The driver that holds the lease now; None if there is none."""
        ...

    def close(self) -> None:
        """Release the connection. Idempotent."""
        ...

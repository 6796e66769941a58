"""The lease within one process: the twin in the contract's suite."""

from __future__ import annotations

import time
from collections.abc import Callable

from workers.driver.lease import LASTS, Holder


class MemoryLease:
    """``Lease`` for drivers that share ``held``. One thread."""

    def __init__(self, held: dict[str, tuple[Holder, float]], clock: Callable[[], float] = time.monotonic) -> None:
        self._held = held
        self._clock = clock

    def take(self, holder: Holder) -> bool:
        found = self.holder()
        if found is not None and found.driver != holder.driver:
            return False
        self._held["lease"] = holder, self._clock() + LASTS.total_seconds()
        return True

    def leave(self, driver: str) -> None:
        found = self.holder()
        if found is not None and found.driver == driver:
            del self._held["lease"]

    def holder(self) -> Holder | None:
        if "lease" not in self._held:
            return None
        holder, until = self._held["lease"]
        return holder if self._clock() < until else None

    def close(self) -> None:
        pass

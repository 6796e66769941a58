"""The contract of claims: the worker of each task of a spout, where the operator has not chosen it.

``RedisClaims`` keeps them for all processes; ``MemoryClaims`` is its twin.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

# A claim that is not kept for so long lapses.
CLAIM = timedelta(seconds=10)


class Claims(Protocol):
    """One worker's, in one topology.

    Each call is safe to repeat. Raises RedisUnavailableError, RedisRefusedError.

    While Redis is away or has lost its memory two workers may believe for a moment that they have
    the same task. The one that opened the outcome feed later hears of all of its messages. The
    earlier one may miss outcomes, which the later one has read and deleted: those messages time out
    and are delivered again. None is acked for it: roots are unique.
    """

    def take(self, task_ids: range) -> int | None:
        """Claim the first free task and return it; None if all are claimed."""
        ...

    def keep(self, task_id: int) -> bool:
        """Prolong the claim, or claim again what has lapsed; False if another worker has it.

        Call it each second.
        """
        ...

    def leave(self, task_id: int) -> None:
        """Release the claim. Idempotent; does not touch another worker's claim."""
        ...


class MemoryClaims:
    """``Claims`` within one process: workers that share ``claimed``. One thread."""

    def __init__(
        self,
        worker: str,
        claimed: dict[int, tuple[str, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._claimed = claimed
        self._clock = clock

    def take(self, task_ids: range) -> int | None:
        return next(
            (
                task_id
                for task_id in task_ids
                if self._holder(task_id) is None and self.keep(task_id)
            ),
            None,
        )

    def keep(self, task_id: int) -> bool:
        if self._holder(task_id) not in (None, self._worker):
            return False
        self._claimed[task_id] = self._worker, self._clock() + CLAIM.total_seconds()
        return True

    def leave(self, task_id: int) -> None:
        if self._holder(task_id) == self._worker:
            del self._claimed[task_id]

    def _holder(self, task_id: int) -> str | None:
        worker, until = self._claimed.get(task_id, ("", 0.0))
        return worker if self._clock() < until else None

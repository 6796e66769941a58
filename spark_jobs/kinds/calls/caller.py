"""The contract of a caller: what runs the calls of one bolt task."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.kinds.calls.recorders import CallRecorder

# ``execute`` of a bolt.
Execute = Callable[[Any, Any], Awaitable[None] | None]
# Told of each call that has ended, by any thread.
Ended = Callable[[Call], None]


class UnderWay(Protocol):
    """Calls of one flight, for a caller that waits for them."""

    @property
    def changed(self) -> threading.Event:
        """Set when a call has ended, and when the task is woken."""
        ...

    @property
    def under_way(self) -> int:
        """Number of calls that have begun and not ended."""
        ...


class Caller(Protocol):
    """Runs the calls of one bolt task. Used by the task's thread, but ``hanging``."""

    def time(self) -> float:
        """Clock of the calls, in seconds."""
        ...

    def recorder(self, call: Call | None) -> CallRecorder:
        """The collector of a call; of ``flush`` without one."""
        ...

    def start(self, execute: Execute, calls: Sequence[Call], ended: Ended) -> None:
        """Begin these calls. Each ends by itself, or is cancelled when it takes too long, and is
        given to ``ended`` once.
        """
        ...

    def pause(self, calls: UnderWay, seconds: float) -> None:
        """Wait until something changes, at most so long. May return early."""
        ...

    def do(self, method: Callable[..., Awaitable[None] | None], *arguments: object) -> None:
        """Run another method of the bolt to its end. Raises what it raises."""
        ...

    def hanging(self) -> Call | None:
        """The call to end the process for, if it goes on for as long as a call may last. Any
        thread.
        """
        ...

    def cancel(self) -> bool:
        """Cancel the calls that are under way, and wait for them a moment. None is started later.

        Returns False if some of them go on. Idempotent.
        """
        ...

    def close(self) -> None:
        """Release what it works with. Idempotent."""
        ...

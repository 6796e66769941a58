"""The contract of a gate: what makes a tuple wait although there is a place for it.

A flight asks its gates about the tuples that wait, in the order of their arrival, whenever a call
has ended, tuples have come, or ``next_at`` is reached. A tuple begins if all gates let it; what one
gate holds back holds no place, and those behind it are asked nevertheless. Ticks pass all gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiercel.spark_jobs.kinds.calls.call import Call


class FlightGate(Protocol):
    """Of one bolt task. One thread only: the task's."""

    @property
    def next_at(self) -> float | None:
        """Time on the flight's clock at which to ask again, though nothing else has happened."""
        ...

    def look(self, waiting: Sequence[Call]) -> None:
        """These wait, the oldest first, and are asked about in turn, until no place is left."""
        ...

    def may_begin(self, call: Call) -> bool:
        """Return True if the tuple may begin now; changes nothing, for another gate may refuse."""
        ...

    def began(self, call: Call) -> None:
        """It has begun: all gates let it."""
        ...

    def passed_over(self, call: Call) -> None:
        """It waits on, for this gate or another."""
        ...

    def over(self, call: Call) -> None:
        """It has ended, well or badly: ``call.error``. Its step is not committed yet."""
        ...

    def close(self) -> None:
        """The attempt ends: what waits and what is under way will not be over."""
        ...

"""The line before the flight, of a bolt without a rate limit: each tuple passes at once."""

from __future__ import annotations

from collections.abc import Callable

from tiercel.spark_jobs.kinds.calls.call import Call


class OpenLine:
    """Tuples that come to one bolt task. One thread only, the task's."""

    # True if a tuple may have to wait.
    limited = False

    def __init__(self) -> None:
        self._new: list[Call] = []
        # Number of tuples that wait.
        self.held = 0
        # Number of those for which a place may be all that is missing.
        self.crowd = 0

    @property
    def full(self) -> bool:
        """True if no further tuple is to be taken from the inbox."""
        return False

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock at which there is something to do here; None: when a tuple
        comes, or a call ends.
        """
        return None

    def add(self, call: Call, *, first: bool = False) -> None:  # noqa: ARG002 - for those with a limit
        """A tuple comes; ``first`` says that others of its value wait for it."""
        self._new.append(call)

    def leave(self, room: int) -> list[Call]:  # noqa: ARG002 - for those with a limit
        """Take out those that may begin now. Call it in every turn, also without room."""
        new = self._new
        self._new = []
        return new

    def over(self) -> list[Call]:
        """Hand out those that end without having begun: their error says why."""
        return []

    def withdraw(self, which: Callable[[Call], bool]) -> None:
        """Take tuples out that wait."""
        self._new = [call for call in self._new if not which(call)]

    def close(self) -> None:
        """The attempt ends. What waits stays in the inbox."""

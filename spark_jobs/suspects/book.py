"""The contract of the case book."""

from __future__ import annotations

from typing import Protocol

from tiercel.acker.ledger import Token
from tiercel.spark_jobs.suspects.case import Case, Suspect


class CaseBook(Protocol):
    """The open cases of one topology, one per bolt task.

    Losing them is safe: another process has to die first.

    Raises RedisUnavailableError while the server does not answer.
    """

    def load(self, token: Token) -> Case:
        """The case of this task, an empty one where there is none.

        Cases of earlier runs are forgotten.
        """
        ...

    def guilty(self, token: Token) -> frozenset[int]:
        """The roots of all guilty tuples of the run, at any task."""
        ...

    def begin(self, token: Token, case: Case) -> None:
        """Replace the case as a whole, for an attempt that begins."""
        ...

    def note(self, token: Token, doing: Suspect | None) -> None:
        """Record what the process does from now on.

        When this has returned, the record outlives the process.

        None, nothing that could be blamed, can also be noted on a server that is out of memory.
        """
        ...

    def cases(self) -> list[Case]:
        """Return all cases, for a driver that begins a run. Changes nothing."""
        ...

    def forget(self) -> None:
        """Delete all cases, once their failures were told. Idempotent."""
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...

"""The contract of the relay: chunks of tuples on their way from the spout workers to the Spark query.

A relay has *lanes*, one a Spark partition of the first level. A lane is an append-only log; positions in it are opaque
strings. ``RedisRelay`` keeps a lane in a Redis stream; ``MemoryRelay`` in a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

START = "0-0"
"""The position before the first entry of any lane."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One encoded chunk (see ``queues.chunk``) for one lane."""

    lane: int
    payload: bytes


class Relay(Protocol):
    """What spout workers append and Spark reads.

    Losing it is safe: the roots of lost chunks time out and are requeued. A chunk that came in twice would be too (equal edges
    cancel out, so the root times out), but slow: an append that the client repeats after a lost reply is recognised.

    Raises what the client of its server raises, which for ours are the errors of ``acker.errors``: LedgerUnavailableError (a
    call may or may not have taken effect, and may be repeated as it is), LedgerRefusedError (a person must act).
    """

    def append(self, entries: Sequence[Entry]) -> None:
        """Append in order, in one round trip. Call only after the roots are registered."""
        ...

    def advance(self, start: Mapping[int, str], limit: int, wait: timedelta) -> dict[int, str]:
        """The positions up to which to read now, at most ``limit`` entries a lane beyond ``start``.

        Waits at most ``wait`` for the first entry; returns ``start``'s positions where nothing came.
        """
        ...

    def read(self, lane: int, start: str, end: str) -> list[bytes]:
        """The payloads after ``start`` up to and including ``end``, in order: the same every time until finished."""
        ...

    def seal(self, lane: int, end: str) -> str:
        """How far to read what was planned to ``end``: to the last entry there is now, and to the same one at every later call.

        Just to ``end`` once that is finished.
        """
        ...

    def finish(self, ends: Mapping[int, str]) -> dict[int, str]:
        """The reads planned to ``ends`` are done with: forget what they went over. Returns how far they went. Idempotent."""
        ...

    def drain(self) -> list[bytes]:
        """Take all payloads of all lanes out of the relay: for a driver that starts a new run."""
        ...

    def attend(self, run: str, during: timedelta) -> None:
        """Say that this run of a driver reads the relay, and will for so long unless it says so again. The last one counts."""
        ...

    def leave(self) -> None:
        """Say that no driver reads the relay now."""
        ...

    def attendant(self) -> str | None:
        """The run that reads the relay. While it is None, whatever is appended could only time out."""
        ...

    def length(self) -> int:
        """Entries held, over all lanes."""
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...

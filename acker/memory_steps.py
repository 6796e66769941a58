"""The memory of steps: which step each task applied last, for the ledger in memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiercel.acker.ledger import Applied, Token

# Runs that are over and known to be.
_REMEMBERED = 64


@dataclass(slots=True)
class _Known:
    """State of one task."""

    # The newest one.
    attempt: int
    # The last one that was applied; -1: none.
    step: int = -1
    # That step's.
    work: object = None


class MemorySteps:
    """Judges tokens as the ledger's contract says. One thread at a time."""

    def __init__(self) -> None:
        self._run: str | None = None
        self._over: list[str] = []
        self._known: dict[tuple[str, int], _Known] = {}

    def judge(self, token: Token, work: object) -> Applied:
        """Judge the work of a step, and remember it. Nothing was applied of what is not FRESH."""
        if self._run not in (None, token.run):
            return Applied.STALE
        known = self._known.setdefault((token.run, token.task), _Known(token.attempt))
        if token.attempt < known.attempt or token.step < known.step:
            return Applied.STALE
        known.attempt = token.attempt
        if token.step == known.step:
            return Applied.REPEATED if work == known.work else Applied.CONFLICTING
        known.step = token.step
        known.work = work
        return Applied.FRESH

    def begin(self, run: str) -> bool:
        """Make ``run`` the current one; False if it is over."""
        if run == self._run:
            return True
        if run in self._over or _number_of(self._run or "") > _number_of(run):
            return False
        if self._run is not None:
            self._over = [self._run, *self._over][:_REMEMBERED]
        self._run = run
        self._known = {key: known for key, known in self._known.items() if key[0] == run}
        return True

    def fence(self, run: str, task: int, attempt: int) -> bool:
        """Refuse older attempts at the task; False if this one is refused itself."""
        if self._run not in (None, run):
            return False
        known = self._known.setdefault((run, task), _Known(attempt))
        known.attempt = max(attempt, known.attempt)
        return attempt == known.attempt


def _number_of(run: str) -> int:
    """Return the number that a run's name begins with, 0 if it begins with none."""
    digits = re.match(r"[0-9]+", run)
    return int(digits[0]) if digits else 0

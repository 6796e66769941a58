"""The case book in memory: the twin in the contract's suite."""

from __future__ import annotations

from dataclasses import replace

from acker import Token
from spark_jobs.suspects.case import Case, Suspect


class MemoryCaseBook:
    """``CaseBook`` within one process. One thread only."""

    def __init__(self) -> None:
        self._cases: dict[Token, Case] = {}

    def load(self, token: Token) -> Case:
        now = (token.run, token.step)
        self._cases = {each: case for each, case in self._cases.items() if (each.run, each.step) == now}
        return self._cases.get(token, Case())

    def begin(self, token: Token, case: Case) -> None:
        self._cases[token] = case

    def note(self, token: Token, doing: Suspect | None) -> None:
        self._cases[token] = replace(self._cases.get(token, Case()), doing=doing)

    def cases(self) -> list[Case]:
        return list(self._cases.values())

    def forget(self) -> None:
        self._cases.clear()

    def close(self) -> None:
        """Nothing to release."""

"""The memory twin of the case book of suspects."""

from __future__ import annotations

import threading
from dataclasses import replace

from tiercel.acker.ledger import Token
from tiercel.spark_jobs.suspects.book import Case, Suspect


class MemoryCaseBook:
    """``RedisCaseBook`` within one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cases: dict[Token, Case] = {}
        self._began: dict[Token, tuple[int, int]] = {}

    def load(self, token: Token) -> Case:
        now = (token.run, token.step)
        with self._lock:
            self._cases = {
                each: case for each, case in self._cases.items() if (each.run, each.step) == now
            }
            return self._cases.get(token, Case())

    def guilty(self, token: Token) -> frozenset[int]:
        with self._lock:
            of_run = [case.guilty for each, case in self._cases.items() if each.run == token.run]
        return frozenset().union(*of_run)

    def begin(self, token: Token, case: Case) -> None:
        with self._lock:
            self._cases[token] = case

    def note(self, token: Token, doing: Suspect | None) -> None:
        with self._lock:
            self._cases[token] = replace(self._cases.get(token, Case()), doing=doing)

    def cases(self) -> list[Case]:
        with self._lock:
            return list(self._cases.values())

    def begins(self, token: Token, step: int) -> None:
        count = self.begun(token, step) + 1
        with self._lock:
            self._began[token] = step, count

    def begun(self, token: Token, step: int) -> int:
        with self._lock:
            before, count = self._began.get(token, (0, 0))
        return count if before == step else 0

    def forget(self) -> None:
        with self._lock:
            self._cases.clear()
            self._began.clear()

    def close(self) -> None:
        """Nothing to release."""

"""Tuples that are emitted under one bound, and judged together."""

from __future__ import annotations

from dataclasses import dataclass

# One in so many may be missing when a round is judged.
_STRAGGLERS = 50


@dataclass(kw_only=True, slots=True)
class Round:
    """Tuples that are judged together."""

    # Times at which the first and the last of them were emitted.
    began: float = 0.0
    until: float = 0.0
    size: int = 0
    # True if the bound kept one back.
    reached: bool = False
    done: int = 0
    # Tuples that left without an outcome: given back, timed out, failed by a bolt.
    gone: int = 0
    # True if a bolt failed one of those that are done.
    failed: bool = False
    # Sum of the latencies of those that are done.
    latency_s: float = 0.0
    # Of those, the stragglers excepted.
    worst_s: float = 0.0

    def emitted(self, count: int, now: float) -> None:
        """Tuples were emitted that belong to it."""
        if not self.size:
            self.began = now
        self.size += count
        self.until = now

    def completed(self, count: int, emitted_at: float, now: float, *, not_before: float) -> None:
        """Trees of tuples that were emitted at this time completed.

        Those of another round are not counted, nor those emitted before ``not_before``.
        """
        if self._has(emitted_at, not_before):
            self.done += count
            self.latency_s += (now - emitted_at) * count
            self.worst_s = max(self.worst_s, now - emitted_at)

    def left(self, count: int, emitted_at: float, *, not_before: float) -> None:
        """Tuples that were emitted at this time left without an outcome: none will come.

        Counted as for ``completed``.
        """
        if self._has(emitted_at, not_before):
            self.gone += count

    @property
    def judged(self) -> int:
        """Tuples by which it is judged: those that have an outcome or will have one."""
        return self.size - self.gone

    @property
    def missing(self) -> int:
        """Tuples whose trees are not complete."""
        return self.judged - self.done

    @property
    def lacks_many(self) -> bool:
        """True if more are missing than a few stragglers."""
        return self.missing > self.judged // _STRAGGLERS

    def mean_s(self, now: float) -> float:
        """Return the mean latency, if those that are missing complete now."""
        return (self.latency_s + self.missing * (now - self.began)) / self.judged

    def _has(self, emitted_at: float, not_before: float) -> bool:
        """Return True if what was emitted at this time belongs to it."""
        return bool(self.size) and max(self.began, not_before) <= emitted_at <= self.until

"""Growth of a bound where trees are quick: as long as more are completed for it."""

from __future__ import annotations

_LARGEST_STEP = 8.0
_LEAST_STEP = 1.05
_CAREFUL_STEP = 1.5
# Latency that grows by this part of what the bound does: next to nothing more is completed.
_IN_VAIN = 0.85
# So much of the growth would show in the latency of tasks that are free.
_FREE = 0.25
# A process that stood still for a moment makes one round slow, and not the next.
_SURE_ROUNDS = 2
_PAUSE_S = 5.0
# Twice what is needed when all take equally long.
_SPARE = 2.0


class Growth:
    """The growths of one bound, each judged by what it gave.

    One thread; times are seconds on one monotonic clock.

    By Little's law a larger bound is of use as far as it is larger in proportion than the latency.
    What a large step had too much is taken back, and small ones follow. One that was in vain is
    tried again after seconds.
    """

    def __init__(self, least: int, cheaper_s: float) -> None:
        """So few in flight do no harm: up to ``least`` it always grows, and where trees take less
        than ``cheaper_s``.
        """
        self._least = least
        self._cheaper_s = cheaper_s
        # The bound before the last growth, and its mean latency.
        self._before: tuple[int, float] | None = None
        # Whether what is in flight was still becoming more.
        self._first = False
        self._vain_rounds = 0
        self._careful = False
        self._pause_until = float("-inf")

    def forget(self) -> None:
        """The bound was changed for another reason."""
        self._before = None

    def judged(self, bound: int, step: float, latency_s: float, now: float) -> int:
        """Return the bound after a round of this mean latency, in which trees were quick
        enough for ``step``.
        """
        before = self._before
        shows = latency_s > self._cheaper_s and bound > self._least
        if before is not None and before[0] < bound and shows:
            if self._first:
                # Its trees waited for as many as before at first, and for as many as now at last.
                latency_s = max(latency_s, 2 * latency_s - before[1])
                self._first = False
            kept = self._kept(bound, before, latency_s, now)
            if kept < bound or self._vain_rounds:
                return kept
        if now < self._pause_until:
            return bound
        step = min(step, _CAREFUL_STEP if self._careful else _LARGEST_STEP)
        if step < _LEAST_STEP:
            return bound
        self._before = bound, latency_s
        self._first = True
        return max(bound + 1, int(bound * step))

    def _kept(self, bound: int, before: tuple[int, float], latency_s: float, now: float) -> int:
        """Return how much of the last growth is of use."""
        grown = bound / before[0] - 1
        slower = latency_s / before[1]
        if slower > 1 + _IN_VAIN * grown:
            self._vain_rounds += 1
            if self._vain_rounds < _SURE_ROUNDS:
                return bound
            self._pause_until = now + _PAUSE_S
            kept = bound / slower
        else:
            kept = _SPARE * bound / slower
            self._careful = self._careful and slower > 1 + _FREE * grown
        self._vain_rounds = 0
        if kept >= bound:
            return bound
        self._careful = True
        self._before = None
        return max(self._least, before[0], int(kept))

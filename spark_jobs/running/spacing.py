"""Spacing: the wait for more work before what costs much for little."""

from __future__ import annotations


class Spacing:
    """Times between beginnings, in seconds. They follow what each of them costs.

    So a busy machine, on which everything takes longer, is asked for larger pieces and not
    for more of them.
    """

    def __init__(self, *, times: float, longest_s: float) -> None:
        """``times`` as long as the costs are, and ``longest_s`` at most."""
        self._times = times
        self._longest_s = longest_s
        self._cost_s = 0.0

    def took(self, seconds: float) -> None:
        """One of them cost so much. What a moment of trouble took counts little."""
        self._cost_s += (min(seconds, self._longest_s) - self._cost_s) / 8

    def between_s(self, least_s: float) -> float:
        """Time from one beginning to the next, ``least_s`` at least."""
        return min(max(least_s, self._times * self._cost_s), self._longest_s)

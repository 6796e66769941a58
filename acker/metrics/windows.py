"""The spans of time that counters are looked at over, cut into slots. Pure.

A window is the slot of now and the twenty before it, as in Storm. Nothing is sampled or forgotten
early, and a window reaches back a twentieth more than its name says at most.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

SLOTS = 20


class Window(enum.Enum):
    """A span of time up to now; the value is in seconds."""

    TEN_MINUTES = 600
    THREE_HOURS = 10_800
    ONE_DAY = 86_400
    ALL_TIME = 0

    @property
    def slot_s(self) -> int:
        """Seconds per slot; ``ALL_TIME`` has none."""
        return self.value // SLOTS


SLIDING = (Window.TEN_MINUTES, Window.THREE_HOURS, Window.ONE_DAY)

# By component, task and counter.
Counts = dict[str, dict[int, dict[str, int]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Counts of a window."""

    counts: Counts
    # Length of the window: since its first slot began, or since counting did. 0 if nothing
    # was ever counted.
    seconds: float


def total_of(counts: Mapping[str, Mapping[int, Mapping[str, int]]], component: str) -> Counter[str]:
    """Return the sums of the counters of a component's tasks; empty if it has none."""
    total: Counter[str] = Counter()
    for of_task in counts.get(component, {}).values():
        total.update(of_task)
    return total


def slot_of(window: Window, now: float) -> int:
    """The number of the slot that ``now`` lies in."""
    return int(now // window.slot_s)


def slots_of(window: Window, now: float) -> range:
    """The numbers of all slots of a window that ends now."""
    last = slot_of(window, now)
    return range(last - SLOTS, last + 1)


def seconds_of(window: Window, now: float, since: float | None) -> float:
    """Return the length of a window now, if counting began at ``since``."""
    if since is None:
        return 0.0
    began = (
        since
        if window is Window.ALL_TIME
        else max(since, slots_of(window, now).start * window.slot_s)
    )
    return max(0.0, now - began)

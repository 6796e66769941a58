"""Rates of the moment: the difference between two looks at the counters some seconds apart.

Pure.
"""

from __future__ import annotations

from collections import deque

from tiercel.acker.metrics.windows import Counts

_SPAN_S = 10.0


class RateMeter:
    """Remembers the looks of the last ten seconds. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Counts]] = deque()

    def look(self, now: float, totals: Counts) -> Counts:
        """Return the counts of a thousand seconds at this rate; nothing at the first look.

        Counters that go backwards were lost with their Redis: the look that follows is
        again a first one.
        """
        if self._looks and _shrank(self._looks[-1][1], totals):
            self._looks.clear()
        self._looks.append((now, totals))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _SPAN_S:
            self._looks.popleft()
        since, before = self._looks[0]
        if now <= since:
            return {}
        return {
            component: {
                task: {
                    name: round(
                        1000
                        * (count - before.get(component, {}).get(task, {}).get(name, 0))
                        / (now - since)
                    )
                    for name, count in counts.items()
                }
                for task, counts in tasks.items()
            }
            for component, tasks in totals.items()
        }


def _shrank(before: Counts, totals: Counts) -> bool:
    return any(
        count > totals.get(component, {}).get(task, {}).get(name, 0)
        for component, tasks in before.items()
        for task, counts in tasks.items()
        for name, count in counts.items()
    )

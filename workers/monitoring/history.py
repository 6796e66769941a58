"""History of all depths. Pure.

The last ten minutes look by look, and three hours in steps of half a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

FINE = timedelta(minutes=10)
KEPT = timedelta(hours=3)
STEP = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthSample:
    """Depths of everything at one moment; None where a server did not answer."""

    at: datetime
    # By the name of the line in the chart.
    depths: dict[str, int | None]


class History:
    """Samples of one topology, in bounded memory: as many as fit, whatever comes."""

    def __init__(self, look: timedelta) -> None:
        """``look`` is the time between two samples."""
        self._fine: deque[DepthSample] = deque(maxlen=FINE // look)
        self._steps: deque[DepthSample] = deque(maxlen=KEPT // STEP)

    def add(self, sample: DepthSample) -> None:
        """Samples come in the order of their times."""
        self._fine.append(sample)
        last = self._steps[-1] if self._steps else None
        if last is None or sample.at >= last.at + STEP:
            self._steps.append(sample)
        else:
            self._steps[-1] = DepthSample(at=last.at, depths=_deepest(last.depths, sample.depths))

    def samples(self) -> Sequence[DepthSample]:
        """The oldest first. A step has the deepest that was seen in it, so that no peak is lost."""
        fine = list(self._fine)
        return [step for step in list(self._steps) if not fine or step.at < fine[0].at] + fine


def _deepest(one: dict[str, int | None], other: dict[str, int | None]) -> dict[str, int | None]:
    def deeper(name: str) -> int | None:
        known = [depth for depth in (one.get(name), other.get(name)) if depth is not None]
        return max(known, default=None)

    return {name: deeper(name) for name in one | other}

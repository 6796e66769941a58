"""History of depths, throughput and latencies. Pure.

The last ten minutes look by look, and three hours in steps of half a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

FINE = timedelta(minutes=10)
KEPT = timedelta(hours=3)
STEP = timedelta(seconds=30)
# By the name of the line in the chart; None where a server did not answer, or nothing was measured.
Figures = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Figures of everything at one moment."""

    at: datetime
    # Of the broker's queues.
    queues: Figures = field(default_factory=dict)
    # Of what is on its way in the topology.
    inside: Figures = field(default_factory=dict)
    # Per second.
    throughput: Figures = field(default_factory=dict)
    # In milliseconds.
    latency: Figures = field(default_factory=dict)


class History:
    """Samples of one topology, in bounded memory: as many as fit, whatever comes."""

    def __init__(self, look: timedelta) -> None:
        """``look`` is the time between two samples."""
        self._fine: deque[Sample] = deque(maxlen=FINE // look)
        self._steps: deque[Sample] = deque(maxlen=KEPT // STEP)

    def add(self, sample: Sample) -> None:
        """Samples come in the order of their times."""
        self._fine.append(sample)
        last = self._steps[-1] if self._steps else None
        if last is None or sample.at >= last.at + STEP:
            self._steps.append(sample)
        else:
            self._steps[-1] = _step(last, sample)

    def samples(self) -> Sequence[Sample]:
        """The oldest first. A step has the highest that was seen in it, so that no peak is lost."""
        fine = self.fine()
        return [step for step in list(self._steps) if not fine or step.at < fine[0].at] + fine

    def fine(self) -> list[Sample]:
        """Those of the last ten minutes, the oldest first."""
        return list(self._fine)


def _step(one: Sample, other: Sample) -> Sample:
    return Sample(
        at=one.at,
        queues=_highest(one.queues, other.queues),
        inside=_highest(one.inside, other.inside),
        throughput=_highest(one.throughput, other.throughput),
        latency=_highest(one.latency, other.latency),
    )


def _highest(one: Figures, other: Figures) -> Figures:
    def higher(name: str) -> float | None:
        known = [figure for figure in (one.get(name), other.get(name)) if figure is not None]
        return max(known, default=None)

    return {name: higher(name) for name in {**one, **other}}

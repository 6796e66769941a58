"""The number of slots is asked for when executors have come, and never waited for without end."""

from __future__ import annotations

import pytest

from tiercel.spark_jobs.spark.slots import steady_slots


class Cluster:
    """Executors that come at their times, in seconds: {time: slots from then on}."""

    def __init__(self, slots: dict[float, int]) -> None:
        self.slots = slots
        self.now = 100.0

    def count(self) -> int:
        return next(
            (slots for at, slots in reversed(self.slots.items()) if self.now - 100 >= at), 0
        )

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def steady_slots(self) -> int:
        return steady_slots(self.count, self.clock, self.wait)


@pytest.mark.parametrize(
    ("executors", "slots", "within_s"),
    [
        pytest.param({0.0: 4}, 4, 1.2, id="all there"),
        pytest.param({2.0: 2, 2.5: 4}, 4, 3.7, id="one after the other"),
        pytest.param({0.0: 4, 0.5: 2}, 2, 1.7, id="one that goes"),
        pytest.param({}, 1, 10.2, id="none"),
        pytest.param({each / 2: each for each in range(100)}, 20, 10.2, id="without end"),
    ],
)
def test_slots_are_counted_when_their_number_stays(
    executors: dict[float, int], slots: int, within_s: float
) -> None:
    cluster = Cluster(executors)
    assert abs(cluster.steady_slots() - slots) <= (1 if len(executors) > 2 else 0)
    assert cluster.now - 100 <= within_s

"""Executors and backlog of a topology over a day, by the model that holds the control law.

    python bench/executors.py [--plot docs/images/executors.png]

The load is a day with a night and two bursts. ``--plot`` needs matplotlib.
"""

from __future__ import annotations

import argparse

from tests.support.executor_model import Model, day
from tiercel.workers.driver.scaling import ExecutorRange

HOUR_S = 3600
# Messages of two seconds; executors of one slot come after half a minute.
_WORK_S, _DELAY_S = 2.0, 30.0
_RANGE = ExecutorRange(least=2, most=20)
# Beginnings of bursts of ten minutes, each with this number of slots of load more.
_BURSTS, _BURST_S, _MORE = (9.5 * HOUR_S, 20 * HOUR_S), 600, 12.0


def load(now: float) -> float:
    """Return the load in slots at a second of the day."""
    burst = any(began <= now < began + _BURST_S for began in _BURSTS)
    return day(4.0)(now) + _MORE * burst


def main() -> None:
    """Print the executors of each hour; draw them."""
    parser = argparse.ArgumentParser(description="Executors and backlog over a day, by a model.")
    parser.add_argument("--plot", help="also draw it into this file")
    given = parser.parse_args()
    model = Model(_RANGE, _WORK_S, load, _DELAY_S, seed=1).run(24 * HOUR_S)
    print("| hour | load, slots | executors, mean | backlog at most, s of work |")
    print("| ---: | ---: | ---: | ---: |")
    for hour in range(24):
        part = slice(hour * HOUR_S, (hour + 1) * HOUR_S)
        print(
            f"| {hour} | {load(hour * HOUR_S + 1):.1f} | {sum(model.presents[part]) / HOUR_S:.1f} "
            f"| {max(model.backlogs[part]):.0f} |"
        )
    if given.plot:
        plot(model, given.plot)


def plot(model: Model, path: str) -> None:
    """Draw load and executors, and below them the backlog."""
    import matplotlib as mpl  # noqa: PLC0415 - only for the plot

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 - as above

    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(8, 4.5), dpi=110, height_ratios=(2, 1)
    )
    hours = [second / HOUR_S for second in range(1, 24 * HOUR_S + 1)]
    above.step(hours, model.presents, label="executors", where="post")
    above.plot(hours, [load(hour * HOUR_S) for hour in hours], label="load in slots")
    above.set_ylim(0, _RANGE.most + 1)
    above.legend(loc="upper left")
    # Seconds that the present executors need for it.
    waits = [
        backlog / present for backlog, present in zip(model.backlogs, model.presents, strict=True)
    ]
    below.plot(hours, waits, label="backlog / executors, s")
    below.axhline(_RANGE.target_s, linestyle=":", label="target")
    below.legend(loc="upper left")
    below.set_xlabel("hour of the day")
    below.set_xlim(0, 24)
    below.set_xticks(range(0, 25, 3))
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()

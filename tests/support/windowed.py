"""Events with random lateness, three windowed bolts over them, and the same windows as a batch
computes them in plain pandas.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from tiercel import AggregatingBolt, Session, Sliding, WindowedBolt, tumbling

# A window: its bolt, its key, its beginning in microseconds since 1970, number of events, and sum.
Row = tuple[str, str, int, int, int]

START = datetime(2026, 3, 1, tzinfo=UTC)
FIELDS = "id long, key string, at timestamp, cents long"
LENGTH = timedelta(seconds=10)
SLIDE = timedelta(seconds=5)
GAP = timedelta(seconds=3)
LATENESS = timedelta(seconds=4)
_PAUSE_EACH = timedelta(seconds=20)
# More than any window of these events.
_CLOSES_AFTER = timedelta(hours=1)
_RESULT = "bolt string, key string, start long, events long, cents long"


def events(number: int, *, seed: int, apart: timedelta, keys: int = 3) -> pd.DataFrame:
    """Return events in the order in which they come: id, key, the time ``at`` which they happened,
    and cents.

    They happen about ``apart`` from each other, with a pause of seconds now and then, so that a key
    has sessions, and come at most ``LATENESS`` after events that happened later.
    """
    draw = np.random.default_rng(seed)
    pauses = draw.uniform(2, 8, number) * (draw.random(number) < apart / _PAUSE_EACH)
    happened = np.cumsum(draw.exponential(apart.total_seconds(), number) + pauses)
    came = happened + draw.uniform(0, LATENESS.total_seconds(), number)
    frame = pd.DataFrame(
        {
            "id": np.arange(number),
            "key": [f"k{key}" for key in draw.integers(keys, size=number)],
            "at": (pd.Timestamp(START) + pd.to_timedelta(happened, unit="s")).floor("ms"),
            "cents": draw.integers(1, 1_000, size=number),
        }
    )
    return frame.iloc[np.argsort(came, kind="stable")].reset_index(drop=True)


def closers(frame: pd.DataFrame, number: int = 20) -> pd.DataFrame:
    """Return events of other keys, for all tasks, after which the windows of ``frame`` are over."""
    return pd.DataFrame(
        {
            "id": -1 - np.arange(number),
            "key": [f"closes-{key}" for key in range(number)],
            "at": frame["at"].max() + _CLOSES_AFTER,
            "cents": 0,
        }
    )


def rows_of(frame: pd.DataFrame) -> list[list[Any]]:
    """Return the values of the tuples."""
    return [
        [int(row.id), row.key, row.at.to_pydatetime(), int(row.cents)]
        for row in frame.itertuples(index=False)
    ]


def bodies_of(frame: pd.DataFrame) -> list[bytes]:
    return [
        json.dumps({"id": id_, "key": key, "at": at.isoformat(), "cents": cents}).encode()
        for id_, key, at, cents in rows_of(frame)
    ]


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class _Timed:
    timestamp_field = "at"
    lag = LATENESS
    output_fields = _RESULT


class Tumbling(_Timed, AggregatingBolt):
    window = tumbling(LENGTH)

    def create(self):
        return 0

    def add(self, accumulator, tup):
        return accumulator + tup["cents"]

    def merge(self, first, second):
        return first + second

    def result(self, accumulator, window, collector):
        collector.emit(["tumbling", window.key, micros(window.start), window.count, accumulator])


class Overlapping(_Timed, WindowedBolt):
    window = Sliding(LENGTH, SLIDE)

    def execute(self, window, collector):
        cents = sum(tup["cents"] for tup in window)
        collector.emit(["sliding", window.key, micros(window.start), len(window), cents])


class Visits(_Timed, WindowedBolt):
    window = Session(GAP)

    def execute(self, window, collector):
        cents = sum(tup["cents"] for tup in window)
        collector.emit(["session", window.key, micros(window.start), len(window), cents])


BOLTS = {"tumbling": Tumbling, "sliding": Overlapping, "session": Visits}


def placed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per event and window that contains it, with ``bolt`` and ``start``."""
    parts = {
        "tumbling": sliding(frame, LENGTH, LENGTH),
        "sliding": sliding(frame, LENGTH, SLIDE),
        "session": sessions(frame, GAP),
    }
    return pd.concat([part.assign(bolt=name) for name, part in parts.items()])


def batch(frame: pd.DataFrame) -> set[Row]:
    """Return the windows of all three bolts."""
    found = placed(frame).groupby(["bolt", "key", "start"], as_index=False)
    return {
        (row.bolt, row.key, micros(row.start.to_pydatetime()), int(row.events), int(row.total))
        for row in found.agg(events=("id", "size"), total=("cents", "sum")).itertuples()
    }


def windows_of(frame: pd.DataFrame) -> dict[int, set[tuple[str, str, int]]]:
    """Return the windows of each event, by its id: bolt, key and beginning."""
    found: dict[int, set[tuple[str, str, int]]] = {}
    for row in placed(frame).itertuples():
        window = (row.bolt, row.key, micros(row.start.to_pydatetime()))
        found.setdefault(int(row.id), set()).add(window)
    return found


def sliding(frame: pd.DataFrame, length: timedelta, slide: timedelta) -> pd.DataFrame:
    """Place events into the windows [start, start + length), aligned to 1970."""
    last = frame["at"].dt.floor(slide)
    parts = [frame.assign(start=last - number * slide) for number in range(-(-length // slide))]
    all_parts = pd.concat(parts)
    return all_parts[all_parts["at"] < all_parts["start"] + length]


def sessions(frame: pd.DataFrame, gap: timedelta) -> pd.DataFrame:
    """Place events into the sessions of their keys: a pause of ``gap`` begins one."""
    ordered = frame.sort_values(["key", "at"])
    since = ordered.groupby("key")["at"].diff()
    number = (since.isna() | (since >= gap)).cumsum()
    return ordered.assign(start=ordered.groupby(number)["at"].transform("min"))

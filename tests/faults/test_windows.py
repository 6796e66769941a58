"""Windows under faults: the results equal those of a batch in pandas, and no message is acked
before its windows have closed, as the broker sees it.

The first result of each window counts, as a sink with a primary key would have it. Without the
faults that last longer than the windows' lag.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.faults import windowed
from tests.faults.catalogue import FAULTS, SOAK
from tests.faults.executions import EFFECTS
from tests.faults.wired import Wired
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.windowed import START, Row, batch, bodies_of, closers, events, windows_of
from tiercel import Publisher
from tiercel.queues.broker.depths import QueueDepth, depths
from tiercel.queues.errors import QueuesError
from tiercel.testing import LocalCluster

pytestmark = pytest.mark.timeout(3600)

_WITHIN_S = 600
EVENTS = 600
APART = timedelta(milliseconds=500)
RATE = 20
# Of each process one. The broker's comes last: all messages come again then.
_FAULTS = (
    "Spark: a Python worker, SIGKILL",
    "spout worker: SIGKILL",
    "driver: SIGKILL",
    "broker: SIGKILL and start",
)
SOAKED, SOAKED_RATE = 100_000, 333
_NOT_HERE = {"Redis: SIGKILL, comes back empty", "bolt: 1 % of the tuples raise, for 10 s"}
_DRAWN = [name for name in SOAK[0][1] if name not in _NOT_HERE]


def firsts(folder: Path, expected: Collection[Row]) -> dict[tuple[str, str, int], Row]:
    """Return the first result of each window, but for the events that close the others.

    A window that a new run repeats lacks the messages that were acked before. A session without its
    first event has another start, and is a repeat if the session that it is a part of was there.
    """
    starts: dict[str, list[int]] = {}
    for name, key, start, *_ in sorted(expected):
        if name == "session":
            starts.setdefault(key, []).append(start)
    found: dict[tuple[str, str, int], Row] = {}
    for row in windowed.results(folder):
        name, key, start, *_ = row
        if key.startswith("closes"):
            continue
        if name == "session":
            whole = starts[key][max(0, bisect(starts[key], start) - 1)]
            start = whole if (name, key, whole) in found else start
        found.setdefault((name, key, start), row)
    return found


class Windows(Wired):
    """The topology on private servers."""

    def __init__(self, folder: Any, *, servers: Servers, once: bool) -> None:
        super().__init__(
            f"tests.faults.windowed:{'topology_once' if once else 'topology'}",
            windowed.QUEUE,
            folder,
            master="local[2]",
            servers=servers,
        )
        self.once = once
        self.published = 0
        self.publishing = False

    def publish(self, frame: pd.DataFrame, rate: int) -> None:
        """Publish events in their order, at this rate at most."""
        began = time.monotonic()
        bodies = bodies_of(frame)
        with Publisher(self.rabbitmq.url, patience=timedelta(seconds=120)) as publisher:
            for first in range(0, len(bodies), rate):
                publisher.publish(self.queue, bodies[first : first + rate])
                self.published += len(bodies[first : first + rate])
                time.sleep(max(0.0, began + first / rate + 1 - time.monotonic()))

    def depth(self) -> QueueDepth | None:
        """Return the queue's depth; None while the broker does not tell it."""
        try:
            [found] = depths(self.rabbitmq.url, [self.queue], self.rabbitmq.management_url)
        except QueuesError:
            return None
        return None if found.unacked is None else found

    def acked(self) -> int | None:
        """Return how many messages are neither in the queue nor dead letters."""
        depth = self.depth()
        if depth is None or depth.unacked is None:
            return None
        left = depth.ready + depth.unacked + (depth.delayed or 0) + (depth.dead_lettered or 0)
        return self.published - left

    def survives(self, frame: pd.DataFrame, rate: int, faults: Iterable[str]) -> None:
        """Publish the events while faults strike, one after the other until none is left."""

        def publish() -> None:
            try:
                self.publish(frame, rate)
            finally:
                self.publishing = False

        self.publishing = True
        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            for name in faults:
                time.sleep(5)
                print(f"  {time.strftime('%H:%M:%S')} {name}")  # noqa: T201
                FAULTS[name](self)  # type: ignore[arg-type] - these need no more of it
        finally:
            publishing.join()
        self.holds_the_open_ones(frame)
        last = closers(frame, 40)
        self.publish(last, len(last))
        expected = batch(frame)

        def found() -> dict[tuple[str, str, int], Row]:
            return firsts(self.folder, expected)

        wait_until(lambda: found().keys() >= {row[:3] for row in expected}, _WITHIN_S)
        assert set(found().values()) == expected
        wait_until(lambda: self.acked_all(len(last)), _WITHIN_S, "each message to be acked")
        written = [row for row in windowed.results(self.folder) if not row[1].startswith("closes")]
        dead = self.dead_lettered()
        if self.once:
            assert not [row for row in written if row[0].endswith(windowed.AGAIN)]
            assert not dead
        print(f"{len(written) - len(expected)} of {len(expected)} again, {dead} late")  # noqa: T201

    def holds_the_open_ones(self, frame: pd.DataFrame) -> None:
        """Nothing comes any more: the messages of the open windows stay unacked."""
        windows = windows_of(frame)
        expected = batch(frame)

        def done() -> int:
            closed = firsts(self.folder, expected).keys()
            return sum(each <= closed for each in windows.values())

        def none_too_early() -> bool:
            acked = self.acked()
            return acked is not None and acked <= done()

        wait_until(none_too_early, 60, "as many acks at most as events whose windows closed")
        assert done() < len(windows)

    def acked_all(self, but: int) -> bool:
        """Return True if no message is in the queue, but for the last ones."""
        depth = self.depth()
        return depth is not None and depth.ready + (depth.unacked or 0) <= but


@pytest.fixture(params=[False, True], ids=["at least once", "once"])
def windows(tmp_path: Any, servers: Servers, request: pytest.FixtureRequest) -> Iterator[Windows]:
    with Windows(tmp_path, servers=servers, once=request.param) as running:
        yield running


@pytest.mark.parametrize("once", [False, True])
def test_the_topology_equals_a_batch_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, once: bool
) -> None:
    """Its bolts, its results and the comparison are right where nothing dies."""
    monkeypatch.setenv(EFFECTS, str(tmp_path))
    frame = events(EVENTS, seed=1, apart=APART)
    with LocalCluster(windowed.topology(once=once), starts_at=START + timedelta(days=1)) as cluster:
        for body in [*bodies_of(frame), *bodies_of(closers(frame, 40))]:
            cluster.feed_body(body)
        cluster.run_until_idle()
        cluster.advance_time(2 * windowed.IDLE.total_seconds())
        assert len(cluster.acked("events")) == EVENTS + 40
    assert set(firsts(tmp_path, batch(frame)).values()) == batch(frame)


@pytest.mark.slow
def test_windows_equal_a_batch_whatever_process_dies(windows: Windows) -> None:
    windows.survives(events(EVENTS, seed=1, apart=APART), RATE, _FAULTS)


@pytest.mark.slow
def test_windows_equal_a_batch_in_a_soak(windows: Windows, pytestconfig: pytest.Config) -> None:
    seed = pytestconfig.getoption("soak_seed") or secrets.randbelow(2**32)
    print(f"to repeat it: --soak-seed={seed}")  # noqa: T201
    frame = events(SOAKED, seed=seed, apart=timedelta(seconds=1) / SOAKED_RATE)
    draw = random.Random(seed)

    def drawn() -> Iterator[str]:
        while windows.publishing:
            yield draw.choice(_DRAWN)

    windows.survives(frame, SOAKED_RATE, drawn())

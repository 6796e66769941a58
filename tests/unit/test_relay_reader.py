"""What Spark asks the relay's reader when it looks for the next micro-batch."""

from types import SimpleNamespace

import pytest

from queues import Entry, MemoryRelay
from spark_jobs.source import RelayReader


class WatchedRelay(MemoryRelay):
    """Notes how long it was asked to wait, and what was trimmed; waits for nothing."""

    def __init__(self):
        super().__init__(lanes=2)
        self.waits, self.trims = [], []

    def advance(self, start, limit, wait):
        self.waits.append(round(wait.total_seconds(), 3))
        return super().advance(start, limit, wait * 0)

    def trim(self, end):
        self.trims.append(dict(end))
        super().trim(end)


@pytest.fixture
def relay():
    return WatchedRelay()


@pytest.fixture
def reader(relay):
    return RelayReader(SimpleNamespace(plan=SimpleNamespace(relay_lanes=2), open_relay=lambda: relay))


def test_an_idle_query_waits_longer_each_time_until_something_comes(relay, reader):
    at = reader.initialOffset()
    for _ in range(5):
        assert reader.latestOffset(at, None) == at
    assert relay.waits == [0.05, 0.1, 0.2, 0.4, 0.4]
    relay.append([Entry(lane=1, payload=b"chunk")])
    found = reader.latestOffset(at, None)
    assert found != at
    reader.latestOffset(found, None)
    assert relay.waits[-1] == 0.05


def test_what_was_read_is_trimmed_once(relay, reader):
    at = reader.initialOffset()
    relay.append([Entry(lane=0, payload=b"chunk")])
    read = reader.latestOffset(at, None)
    assert relay.length() == 1
    for _ in range(3):
        assert reader.latestOffset(read, None) == read
    assert relay.length() == 0
    assert relay.trims == [{0: read["0"], 1: read["1"]}]

"""What Spark asks the relay's reader when it looks for the next micro-batch."""

from types import SimpleNamespace

import pytest

from queues import Entry, MemoryRelay
from queues.relay import START
from spark_jobs.source import RelayReader


class WatchedRelay(MemoryRelay):
    """Notes how long it was asked to wait, and what was finished; waits for nothing."""

    def __init__(self):
        super().__init__(lanes=2)
        self.waits, self.finished = [], []

    def advance(self, start, limit, wait):
        self.waits.append(round(wait.total_seconds(), 3))
        return super().advance(start, limit, wait * 0)

    def finish(self, ends):
        self.finished.append(dict(ends))
        return super().finish(ends)


@pytest.fixture
def relay():
    return WatchedRelay()


@pytest.fixture
def reader(relay):
    plan = SimpleNamespace(relay_lanes=2, lanes=lambda level: 2)
    return RelayReader(SimpleNamespace(plan=plan, open_relay=lambda: relay))


def append(relay, *lanes):
    relay.append([Entry(lane=lane, payload=b"chunk") for lane in lanes])


def test_an_idle_query_waits_longer_each_time_until_something_comes(relay, reader):
    at = reader.initialOffset()
    for _ in range(5):
        assert reader.latestOffset(at, None) == at
    assert relay.waits == [0.05, 0.1, 0.2, 0.4, 0.4]
    append(relay, 1)
    found = reader.latestOffset(at, None)
    assert found != at
    reader.latestOffset(found, None)
    assert relay.waits[-1] == 0.05


def test_what_was_read_is_finished_once(relay, reader):
    at = reader.initialOffset()
    append(relay, 0)
    read = reader.latestOffset(at, None)
    assert relay.length() == 1
    for _ in range(3):
        assert reader.latestOffset(read, None) == read
    assert relay.length() == 0
    assert relay.finished == [{0: START, 1: START}, {0: read["0"], 1: read["1"]}]


def test_what_came_after_the_offset_and_was_read_is_no_micro_batch_of_its_own(relay, reader):
    append(relay, 0, 1)
    at = reader.latestOffset(reader.initialOffset(), None)
    append(relay, 0)
    sealed = relay.seal(0, at["0"])
    assert reader.latestOffset(at, None) == at
    append(relay, 0)
    then = reader.latestOffset(at, None)
    assert [partition.value for partition in reader.partitions(at, then)] == [(0, [(0, sealed, then["0"])])]
    assert len(relay.read(0, sealed, then["0"])) == 1

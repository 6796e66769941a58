"""How a driver's ticks get into the relay: never more than one a task waits there."""

import uuid
from datetime import timedelta

import pytest

from acker import LedgerUnavailableError
from queues import Entry, MemoryRelay
from queues.chunk import decode
from queues.relay import START
from spark_jobs import BasicBolt, Config, TopologyBuilder
from spark_jobs.levels import plan_topology
from spark_jobs.relays import relay_on
from spark_jobs.ticks import Ticks
from tests.pump import Source
from workers.ticker import Ticker

NOW = timedelta(0)


def plan():
    """Two tasks a second, one each three seconds; three lanes."""
    builder = TopologyBuilder("ticking", Config(tick_tuple_freq_secs=1))
    builder.set_spout("words", Source())
    builder.set_bolt("fast", BasicBolt(), 2).shuffle_grouping("words")
    builder.set_bolt("slow", BasicBolt(), config={"tick_tuple_freq_secs": 3}).shuffle_grouping("words")
    return plan_topology(builder.build(), max_lanes=2)


@pytest.fixture(params=["memory", "redis"])
def relay(request):
    if request.param == "memory":
        made = MemoryRelay(lanes=3)
    else:
        made = relay_on(request.getfixturevalue("redis_url"), f"relay-{uuid.uuid4().hex}", lanes=3)
    yield made
    made.close()


class Reader:
    """Reads as the query does: plans a micro-batch, and trims it when it plans the next."""

    def __init__(self, relay):
        self.relay, self.ends = relay, dict.fromkeys(range(3), START)

    def batch(self):
        """The targets of the ticks that came since the last call."""
        if any(end != START for end in self.ends.values()):
            self.relay.finish(self.ends)
        starts, self.ends = self.ends, self.relay.advance(self.ends, 0, NOW)
        payloads = [payload for lane, start in starts.items() for payload in self.relay.read(lane, start, self.ends[lane])]
        return sorted(decode(payload).route.target_task for payload in payloads if payload != b"other")


def test_ticks_come_when_they_are_due(relay):
    ticker, reader = Ticker(Ticks(plan()), relay), Reader(relay)
    ticker.look(0.9)
    assert reader.batch() == []
    ticker.look(1.1)
    assert reader.batch() == [2, 3]
    assert reader.batch() == []
    ticker.look(2.0)
    assert reader.batch() == [2, 3]
    assert reader.batch() == []
    ticker.look(3.0)
    assert reader.batch() == [2, 3, 4]


def test_behind_a_slow_query_they_do_not_pile_up_and_no_task_misses_out(relay):
    ticker, reader = Ticker(Ticks(plan()), relay), Reader(relay)
    ticker.look(1.0)
    assert reader.batch() == [2, 3]
    for tenth in range(10, 100):  # while that micro-batch runs
        relay.append([Entry(lane=0, payload=b"other")])
        ticker.look(tenth / 10)
    assert reader.batch() == []
    ticker.look(10.0)
    ticker.look(11.0)
    assert reader.batch() == [2, 3, 4]


def test_while_redis_is_away_they_do_not_pile_up():
    class Away(MemoryRelay):
        away = False

        def append(self, entries):
            if self.away:
                raise LedgerUnavailableError("away")
            super().append(entries)

    relay = Away(lanes=3)
    ticker, reader = Ticker(Ticks(plan()), relay), Reader(relay)
    relay.away = True
    for second in range(1, 60):
        ticker.look(second)
    relay.away = False
    ticker.look(59.5)
    assert reader.batch() == [2, 3, 4]


def test_a_relay_that_lost_its_memory_gets_the_next_ticks(relay):
    ticker = Ticker(Ticks(plan()), relay)
    ticker.look(1.0)
    relay.drain()
    ticker.look(2.0)
    assert Reader(relay).batch() == [2, 3]

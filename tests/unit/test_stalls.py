"""While a micro-batch takes long, what waits behind it does not time out; but not for ever."""

from datetime import timedelta

import pytest

from acker import LedgerSpec, MemoryLedger
from queues import Entry, MemoryRelay
from queues.relay import START
from tests.chunks import chunk
from workers.stalls import StallWatch

NOW = timedelta(0)
TIMEOUT = timedelta(seconds=30)
SPEC = LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=TIMEOUT)


class Run:
    def __init__(self, timeout=TIMEOUT):
        self.relay, self.ledger = MemoryRelay(lanes=2), MemoryLedger(SPEC)
        self.feed = self.ledger.feed(1)
        self.watch = StallWatch(self.relay, self.ledger, 2, timeout, 0.0)

    def append(self, lane, *roots):
        self.ledger.register(1, roots, [1] * len(roots))
        self.relay.append([Entry(lane=lane, payload=chunk(*roots))])

    def look(self, until, since=0):
        """Each second; returns what was reset when."""
        resets = {}
        for now in range(since, until):
            self.watch.look(float(now))
            if found := self.feed.read(NOW).reset:
                resets[now] = sorted(found)
        return resets


def test_all_that_is_in_the_relay_is_reset_each_third_of_a_timeout():
    run = Run()
    run.append(0, 1, 2)
    run.append(1, 3)
    assert run.look(25) == {11: [1, 2, 3], 21: [1, 2, 3]}


def test_a_run_that_gets_on_resets_nothing():
    run = Run()
    for now in range(0, 90, 3):
        run.append(0, now + 1)
        assert run.look(now + 3, now) == {}
        run.relay.finish(run.relay.advance({0: START, 1: START}, 0, NOW))


def test_an_empty_relay_is_no_stall():
    assert Run().look(300) == {}


def test_without_timeouts_nothing_is_reset():
    run = Run(timeout=None)
    run.append(0, 1)
    assert run.look(300) == {}


def test_after_many_timeouts_it_gives_up_until_the_run_gets_on():
    run = Run()
    run.append(0, 1)
    resets = run.look(1_000)
    assert len(resets) == 30
    assert run.watch.given_up
    run.relay.drain()
    run.look(1_003, 1_000)
    assert not run.watch.given_up


@pytest.mark.parametrize("entries", [49, 50, 51, 120])
def test_none_of_many_chunks_is_left_out(entries):
    run = Run()
    for root in range(1, entries + 1):
        run.append(0, root)
    assert run.look(12) == {11: list(range(1, entries + 1))}

"""What the driver decides without Spark."""

from datetime import timedelta

import pytest

from acker import LedgerSpec, LedgerUnavailableError, MemoryLedger
from queues import Entry, MemoryRelay
from tests.chunks import chunk
from workers.driver import _begin_run, _check_run, _take_turns, release_leftovers
from workers.errors import SupersededError

SPEC = LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=timedelta(seconds=30))


def test_what_a_run_left_in_the_relay_is_released_once_and_the_relay_is_empty():
    ledger, relay = MemoryLedger(SPEC), MemoryRelay(lanes=2)
    feed = ledger.feed(1)
    ledger.register(1, [10, 11, 12], [1, 1, 1])
    relay.append([Entry(lane=0, payload=chunk(10, 11)), Entry(lane=1, payload=chunk(11, 99))])
    assert release_leftovers(relay, ledger) == 2
    assert sorted(feed.read(timedelta(0)).released) == [10, 11]
    assert relay.length() == 0
    assert ledger.pending() == 1


def test_an_empty_relay_releases_nothing():
    assert release_leftovers(MemoryRelay(lanes=1), MemoryLedger(SPEC)) == 0


def test_a_driver_goes_on_while_no_other_came():
    relay = MemoryRelay(lanes=1)
    _take_turns(relay, "mine")
    _take_turns(relay, "mine")
    assert relay.attendant() == "mine"


def test_a_driver_gives_way_to_one_that_came_later():
    relay = MemoryRelay(lanes=1)
    _take_turns(relay, "mine")
    relay.attend("other", timedelta(seconds=60))
    with pytest.raises(SupersededError, match="another driver"):
        _take_turns(relay, "mine")
    assert relay.attendant() == "other"


def test_a_driver_whose_run_was_ended_by_another_one_does_not_begin_the_next():
    ledger = MemoryLedger(SPEC)
    _begin_run(ledger, "mine")
    _check_run(ledger, "mine")
    _begin_run(ledger, "its")
    for _ in range(2):
        with pytest.raises(SupersededError, match="another driver"):
            _check_run(ledger, "mine")
    _check_run(ledger, "its")


def test_a_driver_whose_run_ended_while_redis_was_away_begins_the_next():
    class Away(MemoryLedger):
        def begin(self, run):
            raise LedgerUnavailableError(run)

    _check_run(Away(SPEC), "mine")

"""Cases that only the twin has; the contract suite covers the rest."""

from datetime import timedelta

import pytest

from tests.support.clock import Clock
from tests.support.ledgers import NOW, OTHER, ROOT, A, B, C, said, token, updates
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Applied
from tiercel.acker.memory import MemoryLedger


def ledger_at(clock, message_timeout=timedelta(seconds=30)):
    return MemoryLedger(
        LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=message_timeout),
        clock,
    )


def test_entries_expire_a_few_timeouts_later_without_an_outcome():
    clock = Clock()
    ledger = ledger_at(clock)
    feed = ledger.feed(1)
    ledger.register(1, [ROOT], [A])
    clock.now = 119
    assert ledger.pending() == 1
    clock.now = 121
    assert ledger.pending() == 0
    assert ledger.apply(token(), updates({ROOT: A})).late == 1
    assert not feed.read(NOW)


def test_resetting_a_timeout_keeps_an_entry_as_long():
    clock = Clock()
    ledger = ledger_at(clock)
    ledger.register(1, [ROOT], [A])
    clock.now = 100
    ledger.reset_timeout([ROOT])
    clock.now = 200
    assert ledger.pending() == 1


def test_without_timeouts_entries_stay():
    clock = Clock()
    ledger = ledger_at(clock, message_timeout=None)
    ledger.register(1, [ROOT], [A])
    clock.now = 1e9
    assert ledger.pending() == 1


def test_a_lost_memory_is_told_once():
    ledger = ledger_at(Clock())
    feed = ledger.feed(1)
    ledger.register(1, [ROOT], [A])
    ledger.lose()
    assert feed.read(NOW).ledger_lost
    assert not feed.read(NOW)
    assert ledger.release([ROOT]) == 0
    ledger.register(1, [OTHER], [B])
    ledger.apply(token(), updates({OTHER: B}))
    assert said(feed.read(NOW)) == {"acked": [OTHER]}


def test_a_step_is_known_however_long_it_was_ago():
    clock = Clock()
    ledger = ledger_at(clock)
    feed = ledger.feed(1)
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(1), updates({ROOT: A ^ C}))
    for _ in range(1000):
        clock.now += 60
        ledger.reset_timeout([ROOT])
    assert ledger.apply(token(1), updates({ROOT: A ^ C})).applied is Applied.REPEATED
    assert ledger.apply(token(2), updates({ROOT: C})).completed == 1
    assert feed.read(NOW).acked == [ROOT]


def test_a_run_goes_on_after_a_lost_memory():
    ledger = ledger_at(Clock())
    ledger.begin("old")
    ledger.begin("run")
    ledger.lose()
    ledger.register(1, [ROOT], [A])
    assert ledger.apply(token(1), updates({ROOT: A})).completed == 1
    assert ledger.begin("run")
    assert ledger.apply(token(1), updates({ROOT: A})).applied is Applied.REPEATED
    assert ledger.apply(token(run="old"), updates({ROOT: A})).applied is Applied.STALE


def test_as_many_ack_vals_as_roots():
    with pytest.raises(ValueError, match="zip"):
        ledger_at(Clock()).register(1, [ROOT], [])

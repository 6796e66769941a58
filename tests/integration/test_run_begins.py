"""What a driver tells the ledger when a run begins."""

from __future__ import annotations

import uuid
from contextlib import closing
from datetime import timedelta

import pytest

from acker import Applied, open_ledger
from spark_jobs import BasicBolt, TopologyBuilder
from spark_jobs.job import Job, ledger_spec_of
from spark_jobs.levels import plan_topology
from tests.ledgers import ROOT, A, token, updates
from tests.pump import Source
from workers.driver import _enter
from workers.errors import SupersededError


class Nothing(BasicBolt):
    output_fields = ""

    def execute(self, tup, collector):
        pass


@pytest.fixture
def job(redis_url):
    builder = TopologyBuilder(f"begins-{uuid.uuid4().hex}")
    builder.set_spout("words", Source())
    builder.set_bolt("nothing", Nothing()).shuffle_grouping("words")
    plan = plan_topology(builder.build(), 1)
    return lambda run: Job(run=run, plan=plan, ledger=ledger_spec_of(plan, (redis_url,)))


def test_tasks_of_the_run_before_change_nothing_once_a_run_begins(job):
    _enter(job("first"))
    with closing(open_ledger(job("first").ledger)) as ledger, closing(ledger.feed(1)) as feed:
        ledger.register(1, [ROOT], [A])
        assert ledger.apply(token(run="first"), updates({ROOT: 0})).applied is Applied.FRESH
        _enter(job("second"))
        assert ledger.apply(token(run="first", step=1), updates({ROOT: A})).applied is Applied.STALE
        assert not feed.read(timedelta(0))
        assert ledger.apply(token(run="second"), updates({ROOT: A})).completed == 1


def test_a_call_of_an_older_driver_that_is_repeated_late_ends_that_driver(job):
    _enter(job("first"))
    _enter(job("second"))
    with pytest.raises(SupersededError, match="another driver"):
        _enter(job("first"))
    _enter(job("second"))

"""Bolts in a row on a real server: a process dies between any two effects of their commit."""

from __future__ import annotations

import uuid
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.pump import Pump, Source, killed_after
from tiercel import BasicBolt, TopologyBuilder
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.contract import chained_counter, total_of
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.topology.graph import ledger_spec_of


class Twice(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([2 * tup["n"]])
        collector.emit([2 * tup["n"] + 1])


class Keep(BasicBolt):
    def execute(self, tup, collector):
        pass


def row():
    builder = TopologyBuilder(f"row-{uuid.uuid4().hex}")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("b0", Twice(), parallelism=2).shuffle_grouping("spout")
    builder.set_bolt("b1", Twice(), parallelism=2).shuffle_grouping("b0")
    builder.set_bolt("b2", Twice(), parallelism=2).shuffle_grouping("b1")
    out = builder.set_bolt("out", Keep(), parallelism=2)
    out.fields_grouping("b1", "n").fields_grouping("b2", "n")
    return builder.build()


@pytest.mark.parametrize("effects", [None, 0, 1, 2, 3, 4, 5])
def test_a_death_between_any_two_effects_loses_and_doubles_nothing(redis_url, effects):
    topology = row()
    spec = ledger_spec_of(topology, (redis_url,))
    with closing(open_inboxes(spec)) as inboxes, closing(open_ledger(spec)) as ledger:
        pump = Pump(topology, inboxes=inboxes, ledger=ledger)
        roots = pump.feed(*[[n] for n in range(6)])
        if effects is not None:
            pump.send()
            with killed_after(effects):
                pump.work(*topology.task_ids("b0"))
            pump.take_over()
        pump.run()
        pump.feeds[0].read(timedelta(0))
        assert sorted(pump.acked) == sorted(roots)
        assert not pump.failed
        totals = pump.metrics.totals()
        assert total_of(totals, "out")["executed"] == 6 * (4 + 8)
        if effects is None:
            assert total_of(totals, "b2")[chained_counter("b0")] == 6 * 4

"""Windowed bolts on a real server: a process dies between any two effects of their commits."""

from __future__ import annotations

import uuid
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest

from tests.support.pump import Pump, Source, killed_after
from tests.support.waiting import wait_until
from tiercel import BasicBolt, Sliding, TopologyBuilder, WindowedBolt, tumbling
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import ledger_spec_of

MS = timedelta(milliseconds=1)


class Numbers(WindowedBolt):
    window = Sliding(20 * MS, 10 * MS)
    timestamp_field = "at"
    output_fields = "numbers array<long>"

    def execute(self, window, collector):
        collector.emit([[tup["n"] for tup in window]])


class Now(Numbers):
    window = tumbling(200 * MS)
    timestamp_field = ""


class Once(Numbers):
    window = tumbling(20 * MS)
    once = True


class Keep(BasicBolt):
    def execute(self, tup, collector):
        pass


@contextmanager
def pump_of(redis_url, bolt):
    builder = TopologyBuilder(f"windows-{uuid.uuid4().hex}")
    builder.set_spout("spout", Source("n long, at long"))
    builder.set_bolt("windows", bolt, parallelism=2).fields_grouping("spout", "n")
    builder.set_bolt("end", Keep()).shuffle_grouping("windows")
    topology = builder.build()
    spec = ledger_spec_of(topology, (redis_url,))
    with (
        closing(open_inboxes(spec)) as inboxes,
        closing(open_ledger(spec)) as ledger,
        closing(RedisStateStore(spec, 1)) as state,
    ):
        yield Pump(topology, inboxes=inboxes, ledger=ledger, state=state)


@pytest.mark.parametrize("effects", range(10))
def test_a_death_between_any_two_effects_loses_and_doubles_nothing(redis_url, effects):
    with pump_of(redis_url, Numbers()) as pump:
        tasks = pump.topology.task_ids("windows")
        roots = {}
        for n in range(1, 12):
            [roots[n]] = pump.feed([n % 2, 5 * n])
            pump.send()
            with killed_after(effects):
                pump.work(*tasks)
            pump.take_over(*tasks)
        pump.work(*tasks)
        pump.read()
        assert pump.acked == []
        found = sorted(tuple(row[0]) for row in pump.rows("end"))
        expected = [
            tuple(n % 2 for n in range(1, 12) if n % 2 == key and end - 20 <= 5 * n < end)
            for key in (0, 1)
            # The newest of each key has 50 and 55.
            for end in range(10, 51, 10)
        ]
        assert found == sorted(one for one in expected if one)
        pump.run()
        assert sorted(pump.acked) == sorted(roots[n] for n in range(1, 12) if 5 * n < 40)
        assert not pump.failed


def test_windows_in_processing_time_close_by_the_clock_of_the_server(redis_url):
    with pump_of(redis_url, Now()) as pump:
        roots = pump.feed(*([n, 0] for n in range(20)))
        pump.send()
        pump.run()
        assert pump.acked == []

        def all_acked():
            pump.run()
            return len(pump.acked) == len(roots)

        wait_until(all_acked, 10, "all windows closed")
        assert not pump.failed


@pytest.mark.parametrize("effects", range(10))
def test_what_comes_again_repeats_its_window_though_processes_die(redis_url, effects):
    with pump_of(redis_url, Once()) as pump:
        tasks = pump.topology.task_ids("windows")
        rows = [[n % 2, 5 * n] for n in range(1, 12)]
        names = [str(n) for n in range(1, 12)]
        first = pump.feed(*rows, identities=names)
        pump.send()
        with killed_after(effects):
            pump.work(*tasks)
        pump.take_over(*tasks)
        pump.work(*tasks)
        # Each of the first windows of both keys has closed: all of its messages come again.
        again = pump.feed(*rows[:7], identities=names[:7])
        pump.send()
        with killed_after(effects):
            pump.work(*tasks)
        pump.take_over(*tasks)
        pump.work(*tasks)
        found = [
            (tuple(values), key)
            for chunk in pump.chunks("end")
            for values, key in zip(
                chunk.values.column("numbers").to_pylist(),
                chunk.lineage.keys[:, :2].tolist(),
                strict=True,
            )
        ]
        results = {(values, tuple(key)) for values, key in found}
        assert len(found) > len(results) == 4
        assert len({key for _, key in results}) == 4
        pump.run()
        assert sorted(pump.acked) == sorted([*first[:7], *again])
        assert not pump.failed

"""Windows equal those of a batch whatever dies: three windowed bolts whose processes are killed at
each effect of their commits.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from tests.support.pump import Pump, Source, killed_after
from tests.support.windowed import BOLTS, FIELDS, Row, batch, closers, events, rows_of, windows_of
from tiercel import StatefulBolt, Topology, TopologyBuilder
from tiercel.spark_jobs.state.encoding import decode_key, decode_value

EVENTS = 120
APART = timedelta(milliseconds=500)
# More than the commits of one turn of all tasks have.
_EFFECTS = 24


class Book(StatefulBolt):
    """Counts each result: its state has every step once, however often one is repeated."""

    def execute(self, tup, collector):
        self.state.increment(tuple(tup.values))


def topology() -> Topology:
    builder = TopologyBuilder("windows")
    builder.set_spout("events", Source(FIELDS))
    book = builder.set_bolt("book", Book(), parallelism=2)
    for name, bolt in BOLTS.items():
        builder.set_bolt(name, bolt(), parallelism=2).fields_grouping("events", "key")
        book.fields_grouping(name, "key")
    return builder.build()


def booked(pump: Pump) -> dict[Row, int]:
    """Return how often each window was emitted, without those that close the others."""
    found = {decode_key(key): decode_value(raw) for key, raw in pump.state.entries("book")}
    return {row: count for row, count in found.items() if not row[1].startswith("closes")}


@pytest.mark.parametrize("seed", range(3))
def test_windows_equal_those_of_a_batch(seed: int) -> None:
    frame = events(EVENTS, seed=seed, apart=APART)
    pump = Pump(topology())
    for row in rows_of(frame):
        pump.feed(row)
        pump.run()
    pump.feed(*rows_of(closers(frame)))
    pump.run()
    assert booked(pump) == dict.fromkeys(batch(frame), 1)
    assert len(pump.acked) == EVENTS
    assert not pump.failed


@pytest.mark.parametrize("effects", range(_EFFECTS))
def test_windows_equal_those_of_a_batch_whatever_effect_a_process_dies_at(effects: int) -> None:
    draw = Random(effects)
    frame = events(EVENTS, seed=effects, apart=APART)
    pump = Pump(topology())
    rows = rows_of(frame)
    while rows:
        some = draw.randint(1, 20)
        pump.feed(*rows[:some])
        rows = rows[some:]
        pump.send()
        with killed_after(effects):
            pump.work()
        pump.take_over()
    pump.feed(*rows_of(closers(frame)))
    pump.send()
    with killed_after(effects):
        pump.work()
    pump.take_over()
    pump.run()
    assert booked(pump) == dict.fromkeys(batch(frame), 1)
    assert len(pump.acked) == EVENTS
    assert not pump.failed


def test_no_message_is_acked_before_its_last_window_has_closed() -> None:
    frame = events(EVENTS, seed=1, apart=APART)
    windows = windows_of(frame)
    pump = Pump(topology())
    ids = {}
    for row in rows_of(frame):
        [root] = pump.feed(row)
        ids[root] = row[0]
        pump.run()
        emitted = {one[:3] for one in booked(pump)}
        assert [ids[one] for one in pump.acked if not windows[ids[one]] <= emitted] == []
    assert pump.acked

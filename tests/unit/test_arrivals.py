"""A chunk that a bolt task cannot use is passed over with one line, and its neighbours are executed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest

from queues.chunk import Chunk, Lineage, Route, encode
from queues.schema import Schema
from spark_jobs import BasicBolt, TopologyBuilder
from tests.pump import Pump, Source

ROUTE = Route(component="spout", stream="default", source_task=1, target_task=2)


class Sink(BasicBolt):
    def execute(self, tup, collector):
        pass


@pytest.fixture
def pump():
    builder = TopologyBuilder("arrivals")
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("sink", Sink()).shuffle_grouping("spout")
    return Pump(builder.build())


def chunk(root: int, fields: str = "line string", row: Sequence[object] = ("x",), **route) -> bytes:
    ids = np.array([root], np.uint64)
    return encode(
        Chunk(
            route=Route(**{**{name: getattr(ROUTE, name) for name in Route.__slots__}, **route}),
            values=Schema.parse(fields).batch([row]),
            lineage=Lineage(offsets=np.array([0, 1], np.int32), roots=ids, edges=ids),
        )
    )


@pytest.mark.parametrize("payload", [b"\xff" * 50, chunk(8)[:-100], b""])
def test_a_chunk_that_cannot_be_read_harms_itself_alone(pump, payload, caplog):
    pump.ledger.register(1, [7, 8], [7, 8])
    pump.runners[0].run(pump.token(1, 0), [payload, chunk(7)])
    assert pump.ledger.pending() == 1
    lines = [record.message for record in caplog.records]
    assert len(lines) == 1
    assert f"passing over {len(payload)} bytes: not a chunk of tuples" in lines[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"target_task": 99},
        {"component": "gone"},
        {"stream": "gone"},
        {"fields": "line string, more string", "row": ["x", "y"]},
        {"fields": "other string"},
        {"fields": "line long", "row": [1]},
        {"component": "__system", "stream": "gone"},
    ],
    ids=str,
)
def test_a_chunk_of_another_version_of_the_topology_is_released(pump, changes, caplog):
    payload = chunk(8, **changes)
    pump.ledger.register(1, [7, 8], [7, 8])
    pump.runners[0].run(pump.token(1, 0), [payload, chunk(7)])
    assert pump.ledger.pending() == 0
    found = pump.feeds[0].read(timedelta(0))
    assert (found.acked, found.released) == ([7], [8])
    assert "which this version of the topology does not have" in caplog.records[0].message
    assert len(caplog.records) == 1

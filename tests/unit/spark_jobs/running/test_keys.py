"""A tuple is recognized by its values, even if its message has other delivery counts."""

from __future__ import annotations

import numpy as np
import pytest

from tiercel import BasicBolt, QueueSpout, Topology, TopologyBuilder
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route
from tiercel.queues.spout import Spout
from tiercel.spark_jobs.bolts.tuples import tuples_of
from tiercel.spark_jobs.kinds.awaited import TupleKeys
from tiercel.testing import FeederSpout

PROPERTIES = {"message_id": "id", "headers": "headers", "delivery_count": "n", "redelivered": "re"}


class Book(BasicBolt):
    pass


def topology_of(spout: Spout) -> Topology:
    builder = TopologyBuilder("t")
    builder.set_spout("orders", spout)
    booked = builder.set_bolt("book", Book(), config={"ordered_by": "customer"})
    booked.fields_grouping("orders", "customer")
    return builder.build()


def identity(topology: Topology, *values: object) -> bytes:
    """Return the identity of a tuple of these values, the same in a step and in a chunk."""
    schema = topology.spec("orders").streams["default"]
    chunk = Chunk(
        route=Route(component="orders", stream="default", source_task=1, target_task=2),
        values=schema.batch([values]),
        lineage=Lineage(
            offsets=np.array([0, 1], np.int32),
            roots=np.array([1], np.uint64),
            edges=np.array([1], np.uint64),
        ),
    )
    keys = TupleKeys(topology, "book")
    [tup] = tuples_of(chunk)
    assert keys.identity(tup) == keys.identity_in(chunk, 0)
    return keys.identity(tup)


@pytest.mark.parametrize("kind", [QueueSpout, FeederSpout])
def test_a_message_that_comes_again_is_known_whatever_the_broker_counted(kind: type) -> None:
    arguments = ("orders",) if kind is QueueSpout else ()
    topology = topology_of(kind(*arguments, fields="customer string", properties=PROPERTIES))
    first = identity(topology, "c", "m-1", {"a": "1", "b": None}, 0, False)
    assert identity(topology, "c", "m-1", {"b": None, "a": "1"}, 3, True) == first
    assert identity(topology, "c", "m-2", {"a": "1", "b": None}, 0, False) != first
    assert identity(topology, "c", "m-1", {"a": "2", "b": None}, 0, False) != first
    assert identity(topology, "c", "m-1", None, 0, False) != first


def test_fields_of_the_body_have_their_own_names() -> None:
    fields = "customer string, redelivered boolean"
    topology = topology_of(FeederSpout(fields, properties={"redelivered": "again"}))
    assert identity(topology, "c", True, False) != identity(topology, "c", False, False)
    assert identity(topology, "c", True, False) == identity(topology, "c", True, True)

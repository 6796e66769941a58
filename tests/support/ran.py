"""A topology that has run, as commands and the monitor find it, without its processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.support.broker import delete, put, unique
from tiercel import BasicBolt, QueueSpout, TopologyBuilder, WorkQueue, declare_queue
from tiercel.workers.control.registry import Registry


@contextmanager
def ran(
    amqp_url: str, redis_url: str, word: str, *letters: bytes, bolt: str = "sink"
) -> Iterator[str]:
    """Leave the topology's note and its queue of the same name, with these dead letters, within the
    block.
    """
    name = unique(word)
    builder = TopologyBuilder(name)
    builder.set_spout("lines", QueueSpout(name))
    builder.set_bolt(bolt, BasicBolt()).shuffle_grouping("lines")
    with closing(Registry(redis_url)) as registry:
        registry.announce(builder.build())
    declare_queue(amqp_url, WorkQueue(name=name))
    put(amqp_url, f"{name}.dead", *letters)
    yield name
    for queue in (name, f"{name}.dead"):
        delete(amqp_url, queue)

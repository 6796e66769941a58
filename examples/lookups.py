"""Asynchronous answers from a pool: ``tiercel run tiercel.examples.lookups:topology``.

    seq 300 | sed 's/.*/{"parcel": &}/' | tiercel publish parcels -

A ``Bolt`` may pass a tuple to a thread and return. The thread emits, acks or fails the tuple later,
while the bolt's task executes other tuples. If the process dies first, the message is redelivered.
Storm's bolts are written like this; a new bolt is shorter as an ``AsyncBolt``, or as a
``BasicBolt`` with ``config={"threads": 16}``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tiercel import (
    Bolt,
    OutputCollector,
    QueueSink,
    QueueSpout,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)


class LookUp(Bolt):
    """Asks a service for the locations of parcels, sixteen at a time."""

    output_fields = "parcel long, place string"
    # A pool cannot be pickled: each process makes its own.
    transient = frozenset({"_pool"})

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        super().prepare(config, context)
        self._pool = ThreadPoolExecutor(16)

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self._pool.submit(self._look_up, tup, collector)

    def cleanup(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _look_up(tup: Tuple, collector: OutputCollector) -> None:
        try:
            place = ask(tup["parcel"])
        except TimeoutError as error:
            collector.fail(tup, error)
            return
        collector.emit([tup["parcel"], place], tup)
        collector.ack(tup)


def ask(parcel: int) -> str:
    """Simulate a service that takes 1 to 50 ms, and does not know one parcel in fifty."""
    time.sleep(random.uniform(0.001, 0.05))
    if random.random() < 0.02:
        raise TimeoutError(f"the service does not know yet where parcel {parcel} is")
    return f"depot {parcel % 7}"


def topology() -> Topology:
    builder = TopologyBuilder("lookups")
    builder.set_spout("parcels", QueueSpout("parcels", fields="parcel long"))
    builder.set_bolt("look_up", LookUp(), parallelism=2).shuffle_grouping("parcels")
    builder.set_bolt("places", QueueSink("places")).shuffle_grouping("look_up")
    return builder.build()

"""The topology of windows: three windowed bolts over one stream of events, whose results a sink
writes into a file.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from tests.faults.executions import EFFECTS
from tests.support.windowed import BOLTS, FIELDS, Row
from tiercel import BasicBolt, Config, QueueSpout, Retry, StatefulBolt, TopologyBuilder

NAME = "windowed"
QUEUE = "windowed"
PARALLELISM = 2
# In event time: what a fault delays by more may be late.
LAG = timedelta(seconds=60)
# Longer than a process takes to start again: it holds the watermark meanwhile.
IDLE = timedelta(seconds=90)
_RESULTS = "results"
# Added to the name of the bolt of a result that is applied again.
AGAIN = "-again"


class Record(BasicBolt):
    """Writes each result as a line: one write of a line is atomic, also of several processes."""

    def execute(self, tup, collector):
        line = " ".join(map(str, tup.values)) + "\n"
        place = Path(os.environ[EFFECTS]) / _RESULTS
        file = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)


class Apply(StatefulBolt):
    """Applies each result once, and marks one that it has applied before."""

    once = True
    output_fields = "bolt string, key string, start long, events long, cents long"

    def execute(self, tup, collector):
        name, key, start, *rest = tup.values
        times = self.state.get((key, name, start), 0)
        self.state.put((key, name, start), times + 1)
        collector.emit([name + AGAIN if times else name, key, start, *rest])


def results(folder: Path) -> list[Row]:
    """Return what was written, in order."""
    place = folder / _RESULTS
    lines = place.read_text().splitlines() if place.exists() else []
    found = [line.split(" ") for line in lines]
    return [(name, key, int(start), int(n), int(cents)) for name, key, start, n, cents in found]


def topology(*, once=False):
    builder = TopologyBuilder(
        NAME, Config(ackers=2, message_timeout_secs=15, shutdown_grace_secs=2)
    )
    builder.set_spout("events", QueueSpout(QUEUE, fields=FIELDS, identity="body"), 2)
    record = builder.set_bolt(
        "record", Record(), PARALLELISM, config={"retry": Retry(attempts=5, wait=1)}
    )
    apply = builder.set_bolt("apply", Apply(), PARALLELISM) if once else None
    for name, kind in BOLTS.items():
        bolt = kind()
        bolt.lag, bolt.idle, bolt.once = LAG, IDLE, once
        builder.set_bolt(name, bolt, PARALLELISM).fields_grouping("events", "key")
        if apply is None:
            record.shuffle_grouping(name)
        else:
            apply.fields_grouping(name, "key")
    if apply is not None:
        record.shuffle_grouping("apply")
    return builder.build()


def topology_once():
    return topology(once=True)

"""The topology of the fault tests: numbered messages, a fan-out of ten, a fields grouping, and effects that survive.

An effect is a line in a file of the process that had it, written before the ack: no server that a test kills can lose it.
"""

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

from queues import QueueSpout, RetryPolicy
from spark_jobs import BasicBolt, Config, TopologyBuilder

NAME = "numbered"
QUEUE = "numbered"
FAN_OUT = 10
EFFECTS = "TIERCEL_TEST_EFFECTS"
"""Names the folder of the effects."""


class FanOut(BasicBolt):
    output_fields = "number long, part long, bucket string"

    def execute(self, tup, collector):
        for part in range(FAN_OUT):
            collector.emit([tup["number"], part, f"bucket {(tup['number'] + part) % 97}"])


class Record(BasicBolt):
    def prepare(self, config, context):
        self.lines = []

    def execute(self, tup, collector):
        self.lines.append(f"{tup['number']} {tup['part']}\n")

    def flush(self, collector):
        path = Path(os.environ[EFFECTS]) / str(os.getpid())
        with path.open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()


def effects(folder: Path) -> Counter:
    """(number, part) to how often it was recorded."""
    found = Counter()
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            number, part = line.split()
            found[int(number), int(part)] += 1
    return found


def topology():
    builder = TopologyBuilder(NAME, Config(message_timeout_secs=15, shutdown_grace_secs=5))
    retry = RetryPolicy(first=timedelta(milliseconds=50), longest=timedelta(seconds=1))
    builder.set_spout("numbers", QueueSpout(QUEUE, fields="number long", format="json", retry=retry), parallelism=2)
    builder.set_bolt("fan-out", FanOut(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("record", Record(), parallelism=2).fields_grouping("fan-out", "bucket")
    return builder.build()

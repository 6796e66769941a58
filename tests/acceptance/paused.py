"""Numbers of two queues, each recorded by its own bolt, one line per tuple."""

import os
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder

NAME = "paused"
QUEUE = "paused"
BESIDE = "beside"
# Variable that names the folder of the records: one file per process, a line per tuple.
FOLDER = "TIERCEL_TEST_PAUSED"
TIMEOUT_S = 5


class Work(BasicBolt):
    output_fields = "number long"

    def execute(self, tup, collector):
        collector.emit([tup["number"]])


class Record(BasicBolt):
    def __init__(self, name):
        self.name = name

    def execute(self, tup, collector):
        with (Path(os.environ[FOLDER]) / f"{self.name}-{os.getpid()}").open("a") as file:
            file.write(f"{tup['number']}\n")


def topology():
    builder = TopologyBuilder(NAME, Config(message_timeout_secs=TIMEOUT_S, shutdown_grace_secs=5))
    for queue in (QUEUE, BESIDE):
        builder.set_spout(queue, QueueSpout(queue, fields="number long", format="json"))
    builder.set_bolt("work", Work(), parallelism=2).shuffle_grouping(QUEUE)
    builder.set_bolt("record", Record("record"), parallelism=2).shuffle_grouping("work")
    builder.set_bolt("keyed", Record("keyed"), parallelism=2).fields_grouping("work", "number")
    builder.set_bolt("others", Record("others")).shuffle_grouping(BESIDE)
    return builder.build()

"""Tuples that take most of the message timeout, behind a quick bolt."""

import os
import time
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder

QUEUE = "slow"
# Variable that names the folder of the records: one file per process, a line per tuple.
FOLDER = "TIERCEL_TEST_SLOW"
TIMEOUT_S = 15
# Two in a row would time out.
WORK_S = 9.0
TASKS = 6


class Pass(BasicBolt):
    output_fields = "number long"

    def execute(self, tup, collector):
        collector.emit([tup["number"]])


class Work(BasicBolt):
    def execute(self, tup, collector):
        with (Path(os.environ[FOLDER]) / f"{os.getpid()}").open("a") as file:
            file.write(f"{tup['number']} {time.monotonic()}\n")
        time.sleep(WORK_S)


def topology():
    builder = TopologyBuilder("slow", Config(message_timeout_secs=TIMEOUT_S))
    builder.set_spout(QUEUE, QueueSpout(QUEUE, fields="number long", format="json"))
    builder.set_bolt("pass", Pass()).shuffle_grouping(QUEUE)
    builder.set_bolt("work", Work(), parallelism=TASKS).shuffle_grouping("pass")
    return builder.build()

"""Numbers of one queue, counted in windows of ten seconds of event time."""

import os
from datetime import timedelta
from pathlib import Path

from tiercel import AggregatingBolt, Config, QueueSpout, TopologyBuilder, tumbling

NAME = "standing"
QUEUE = "standing"
# Variable that names the folder of the counts: a line per window.
FOLDER = "TIERCEL_TEST_STANDING"
PREFETCH = 40
# Longer than it takes until the bolts know that the spout is full.
IDLE_S = 6


class Count(AggregatingBolt):
    window = tumbling(timedelta(seconds=10))
    timestamp_field = "at"
    idle = timedelta(seconds=IDLE_S)

    def create(self):
        return 0

    def add(self, accumulator, tup):
        return accumulator + 1

    def result(self, accumulator, window, collector):
        with (Path(os.environ[FOLDER]) / "counts").open("a") as file:
            file.write(f"{accumulator}\n")


def topology():
    builder = TopologyBuilder(NAME, Config(shutdown_grace_secs=2))
    spout = QueueSpout(QUEUE, fields="number long, at long", format="json", prefetch=PREFETCH)
    builder.set_spout("numbers", spout)
    builder.set_bolt("count", Count()).global_grouping("numbers")
    return builder.build()

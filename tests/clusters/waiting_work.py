"""Work that waits: each number is written down, and takes 0.2 s in one of four tasks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, Topology, TopologyBuilder

# Names the folder of files, one per process, with a line per tuple that was begun; in pods there is
# none.
FOLDER = "TIERCEL_TEST_SCALED"


class Wait(BasicBolt):
    def execute(self, tup, collector):
        if folder := os.environ.get(FOLDER):
            with (Path(folder) / str(os.getpid())).open("a") as file:
                file.write(f"{tup['number']}\n")
        time.sleep(0.2)


def topology() -> Topology:
    builder = TopologyBuilder("waiting-work", Config(message_timeout_secs=120))
    builder.set_spout("numbers", QueueSpout("scaled-numbers", fields="number string"))
    builder.set_bolt("work", Wait(), parallelism=4).shuffle_grouping("numbers")
    return builder.build()

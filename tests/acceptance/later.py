"""Waiting work: a bolt that wants each number later, once, and one whose calls last longer than
messages live.
"""

import os
import time
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, RetryLater, TopologyBuilder

QUEUE = "later"
# Variable that names a folder with a file per number, one line per call.
FOLDER = "TIERCEL_TEST_LATER"
SECONDS = 3.0
TIMEOUT_S = 5.0
# The number with a long call; the others take no time.
LONG = 1
LONG_S = 3 * TIMEOUT_S


class Later(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        file = Path(os.environ[FOLDER]) / f"later-{tup['n']}"
        with file.open("a") as calls:
            calls.write(f"{time.time()}\n")
        if len(file.read_text().splitlines()) == 1:
            raise RetryLater(SECONDS, "not yet", blame=tup["n"] % 2 == 0)
        collector.emit([tup["n"]])


class Long(BasicBolt):
    def execute(self, tup, collector):
        with (Path(os.environ[FOLDER]) / f"long-{tup['n']}").open("a") as calls:
            calls.write(f"{time.time()}\n")
        if tup["n"] == LONG:
            time.sleep(LONG_S)


def topology():
    builder = TopologyBuilder(
        "later", Config(message_timeout_secs=TIMEOUT_S, shutdown_grace_secs=2)
    )
    builder.set_spout("numbers", QueueSpout(QUEUE, fields="n long"))
    builder.set_bolt("later", Later()).shuffle_grouping("numbers")
    builder.set_bolt("long", Long(), config={"execute_timeout_secs": 60}).shuffle_grouping("later")
    return builder.build()

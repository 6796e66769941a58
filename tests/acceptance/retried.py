"""Numbers of which every third fails at first, and is retried by its bolt's task."""

import os
import time
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, Retry, TopologyBuilder

QUEUE = "retried"
# Variable that names a folder with a file per number and bolt, one line per call: time and process.
FOLDER = "TIERCEL_TEST_RETRIED"
WAIT_S = 12.0


def note(bolt: str, number: int) -> int:
    """Record a call; return the number of calls."""
    file = Path(os.environ[FOLDER]) / f"{bolt}-{number}"
    with file.open("a") as calls:
        calls.write(f"{time.time()} {os.getpid()}\n")
    return len(file.read_text().splitlines())


class Call(BasicBolt):
    output_fields = "n long"
    retry = Retry(attempts=3, wait=WAIT_S, on=ConnectionError)

    def execute(self, tup, collector):
        collector.emit([tup["n"]])
        if note("call", tup["n"]) == 1 and tup["n"] % 3 == 0:
            raise ConnectionError(f"no answer for {tup['n']}")


class Sink(BasicBolt):
    def execute(self, tup, collector):
        note("sink", tup["n"])


def topology(timeout_s=30.0):
    builder = TopologyBuilder("retried", Config(message_timeout_secs=timeout_s))
    builder.set_spout("numbers", QueueSpout(QUEUE, fields="n long"))
    builder.set_bolt("call", Call(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("sink", Sink()).shuffle_grouping("call")
    return builder.build()


def short_lived():
    """The topology with messages that time out before their tuples are retried."""
    return topology(WAIT_S / 2)

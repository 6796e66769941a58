"""A topology for messages that kill the Python process.

Effects survive the death, as in ``numbered``.
"""

import ctypes
import os
import signal
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, RetryPolicy, TopologyBuilder

QUEUE = "deadly"
EFFECTS = "TIERCEL_TEST_EFFECTS"
DELIVERY_LIMIT = 2
PARTS = 3
# Of address space, most of it unused; a Python worker that asks for more is refused.
LARGEST_PROCESS_MIB = 3072

# malloc keeps smaller parts when they are freed; taken again, they count for the control group that
# the process was in before.
_STEP_MIB = 33


def allocate():
    """Allocate until memory runs out, slowly enough for the watcher of the memory."""
    # Without a bound, the kernel kills this process first, and no other process of the machine.
    Path("/proc/self/oom_score_adj").write_text("1000")
    held = []
    while True:
        held.append(bytearray(_STEP_MIB * 1024 * 1024))
        time.sleep(0.001 * _STEP_MIB)


DEATHS = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "hang": lambda: time.sleep(3600),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "allocate": allocate,
}


class FanOut(BasicBolt):
    output_fields = "number long, part long, death string"

    def execute(self, tup, collector):
        if tup["death"] == "exit":
            DEATHS["exit"]()
        for part in range(PARTS):
            collector.emit([tup["number"], part, tup["death"]])


class Record(BasicBolt):
    def prepare(self, config, context):
        self.lines = []
        self.deadly = False

    def execute(self, tup, collector):
        if tup["death"] == "flush":
            self.deadly = True
        elif tup["death"]:
            DEATHS[tup["death"]]()
        self.lines.append(f"{tup['number']} {tup['part']}\n")

    def flush(self, collector):
        if self.deadly:
            DEATHS["exit"]()
        with (Path(os.environ[EFFECTS]) / str(os.getpid())).open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()


def effects(folder: Path) -> Counter:
    """Return how many of its parts were recorded for each number, repeats included."""
    return Counter(
        int(line.split()[0]) for path in folder.iterdir() for line in path.read_text().splitlines()
    )


def topology(message_timeout_secs=60):
    spark_options = {"spark.executor.pyspark.memory": f"{LARGEST_PROCESS_MIB}m"}
    config = Config(
        message_timeout_secs=message_timeout_secs,
        shutdown_grace_secs=5,
        spark_options=spark_options,
    )
    builder = TopologyBuilder("deadly", config)
    retry = RetryPolicy(first=timedelta(milliseconds=50), longest=timedelta(seconds=1))
    spout = QueueSpout(
        QUEUE,
        fields="number long, death string",
        format="json",
        retry=retry,
        delivery_limit=DELIVERY_LIMIT,
    )
    builder.set_spout("messages", spout)
    builder.set_bolt("fan-out", FanOut(), parallelism=2).shuffle_grouping("messages")
    builder.set_bolt("record", Record(), parallelism=2).fields_grouping("fan-out", "number", "part")
    return builder.build()


def impatient():
    return topology(message_timeout_secs=8)

"""Numbers that are counted in a state and written down, with the task that did it."""

import os
import threading
import time
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, StatefulBolt, TopologyBuilder

NAME = "rebalanced"
QUEUE = "rebalanced"
# Names the folder of what was written down: one file per process, a line per tuple.
FOLDER = "TIERCEL_TEST_REBALANCED"
# Names the seconds of a long message.
LONG = "TIERCEL_TEST_LONG_S"


class Work(BasicBolt):
    output_fields = "number long, place string"

    def prepare(self, config, context):
        self.place = f"{context.task_index}/{context.parallelism}"

    def execute(self, tup, collector):
        threading.Event().wait(0.003)
        collector.emit([tup["number"], self.place])


class Count(StatefulBolt):
    output_fields = "number long, place string"

    def execute(self, tup, collector):
        self.state.increment(tup["number"] % 10)
        collector.emit([tup["number"], tup["place"]])


class Record(BasicBolt):
    def prepare(self, config, context):
        self.lines = []

    def execute(self, tup, collector):
        self.lines.append(f"{tup['number']} {tup['place']}\n")

    def flush(self, collector):
        with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()


class Slow(BasicBolt):
    """Writes down the number, and the folder for temporary files, which names the host."""

    def execute(self, tup, collector):
        threading.Event().wait(0.5)
        with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a") as file:
            file.write(f"{tup['number']} {os.environ['TMPDIR']}\n")


class Wait(BasicBolt):
    output_fields = "number long, place string"

    def execute(self, tup, collector):
        threading.Event().wait(0.2)
        collector.emit([tup["number"], os.environ["TMPDIR"]])


# Messages of this number and above are short.
SHORT_FROM = 100


class Long(BasicBolt):
    """Writes down the number and the place when it begins, and when it ends."""

    def execute(self, tup, collector):
        self.write("begins", tup["number"])
        threading.Event().wait(float(os.environ[LONG]) if tup["number"] < SHORT_FROM else 0.2)
        self.write("ends", tup["number"])

    def write(self, doing, number):
        with (Path(os.environ[FOLDER]) / f"{os.getpid()}-{threading.get_ident()}").open(
            "a"
        ) as file:
            file.write(f"{number} {doing} {os.environ['TMPDIR']} {time.time()}\n")


class Write(BasicBolt):
    """Writes down the number, and the place where the bolt before this one executed it."""

    def execute(self, tup, collector):
        with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a") as file:
            file.write(f"{tup['number']} {tup['place']}\n")


def slow():
    builder = TopologyBuilder(NAME, Config(shutdown_grace_secs=5))
    builder.set_spout("numbers", QueueSpout(QUEUE, fields="number long", format="json"))
    builder.set_bolt("slow", Slow(), parallelism=4).shuffle_grouping("numbers")
    return builder.build()


def joined():
    """Messages of 0.2 s that are anchored through two bolts in lines."""
    builder = TopologyBuilder(NAME, Config(shutdown_grace_secs=5))
    builder.set_spout("numbers", QueueSpout(QUEUE, fields="number long", format="json"))
    builder.set_bolt("wait", Wait(), parallelism=4).shuffle_grouping("numbers")
    builder.set_bolt("write", Write(), parallelism=2).shuffle_grouping("wait")
    return builder.build()


def long():
    """Long messages, and short ones."""
    builder = TopologyBuilder(NAME, Config(message_timeout_secs=300, shutdown_grace_secs=5))
    builder.set_spout("numbers", QueueSpout(QUEUE, fields="number long", format="json"))
    builder.set_bolt("long", Long(), parallelism=6).shuffle_grouping("numbers")
    return builder.build()


def topology():
    builder = TopologyBuilder(NAME, Config(message_timeout_secs=60, shutdown_grace_secs=5))
    builder.set_spout(
        "numbers", QueueSpout(QUEUE, fields="number long", format="json"), parallelism=2
    )
    builder.set_bolt("work", Work()).shuffle_grouping("numbers")
    builder.set_bolt("count", Count(), parallelism=2).fields_grouping("work", "number")
    builder.set_bolt("record", Record()).fields_grouping("count", "number")
    return builder.build()

"""Topologies of slow work, of odd messages, and of an executor that vanishes.

An effect is a line in a file of its process, written before the ack.
"""

import hashlib
import os
import time
from collections import Counter
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, StatefulBolt, TopologyBuilder

SLOW = "slow"
ODD = "odd"
TIMED = "timed"
PACED = "paced"
VANISHED = "vanished"
FILLING = "filling"
# Tuples per message that fills Redis.
PARTS = 5
# Duration of the tuple in which an executor vanishes.
HOLD_S = 3.0
# Seconds per tuple of the slow bolt, and of the bolt whose tuples are timed.
SLOW_S = 0.5
TIMED_S = 1.0
EFFECTS = "TIERCEL_TEST_EFFECTS"


BEGUN = "begun"
DONE = "done"


def write_effect(key, what=DONE):
    """Write a line with the key and the time, before anything can end the process."""
    with (Path(os.environ[EFFECTS]) / str(os.getpid())).open("a") as file:
        file.write(f"{what} {key} {time.time()}\n")


def digest(body):
    return hashlib.sha256(body).hexdigest()


class Executions:
    """A snapshot of the effects, repeats included."""

    def __init__(self, folder):
        self.begun = Counter()
        self.done = Counter()
        # Time at which each was first done.
        self.first_at = {}
        self.last_at = 0.0
        # Processes that are in a call of ``execute``, or were when they were killed.
        self.busy = []
        for path in folder.iterdir():
            lines = path.read_text().split("\n")
            # A line that is still being written has no end, and is left for the next snapshot.
            for what, key, at in map(str.split, lines[:-1]):
                self._count(what, key, float(at))
            if len(lines) > 1 and lines[-2].startswith(BEGUN):
                self.busy.append(int(path.name))

    def _count(self, what, key, at):
        if what == BEGUN:
            self.begun[key] += 1
        else:
            self.done[key] += 1
            self.first_at[key] = min(at, self.first_at.get(key, at))
            self.last_at = max(at, self.last_at)


class Slow(BasicBolt):
    def __init__(self, seconds):
        self.seconds = seconds

    def execute(self, tup, collector):
        write_effect(tup["number"], BEGUN)
        time.sleep(self.seconds)
        write_effect(tup["number"])


class Paced(BasicBolt):
    """Takes as long as the message says."""

    def execute(self, tup, collector):
        if tup["seconds"]:
            time.sleep(tup["seconds"])


class Pass(BasicBolt):
    output_fields = "body binary"

    def execute(self, tup, collector):
        collector.emit([tup["body"]])


class Digest(BasicBolt):
    def execute(self, tup, collector):
        write_effect(digest(tup["body"]))


def hold_order(folder):
    """Return the order file: while it exists, the next tuple removes it and takes long."""
    return folder.with_name(folder.name + "-hold")


class Tally(StatefulBolt):
    """Counts each number in its state."""

    def execute(self, tup, collector):
        write_effect(tup["number"], BEGUN)
        try:
            hold_order(Path(os.environ[EFFECTS])).unlink()
        except FileNotFoundError:
            pass
        else:
            time.sleep(HOLD_S)
        self.state.increment(tup["number"])
        write_effect(tup["number"])


class Part(BasicBolt):
    output_fields = "number long, part long, text string"

    def execute(self, tup, collector):
        for part in range(PARTS):
            collector.emit([tup["number"], part, tup["text"]])


class Count(StatefulBolt):
    def execute(self, tup, collector):
        self.state.increment("parts")
        write_effect(f"{tup['number']}-{tup['part']}")


def slow(queue=SLOW, seconds=SLOW_S):
    """Build a topology with default settings."""
    builder = TopologyBuilder(f"{queue}-work")
    builder.set_spout("numbers", QueueSpout(queue, fields="number long", format="json"))
    builder.set_bolt("slow", Slow(seconds), parallelism=4).shuffle_grouping("numbers")
    return builder.build()


def timed():
    return slow(TIMED, TIMED_S)


def paced():
    """Build a topology whose messages time out before a dead driver is replaced."""
    builder = TopologyBuilder("paced", Config(message_timeout_secs=5))
    builder.set_spout("messages", QueueSpout(PACED, fields="seconds double"))
    builder.set_bolt("work", Paced(), parallelism=2).shuffle_grouping("messages")
    return builder.build()


def filling():
    """Build a topology that takes more at once than the test's Redis has room for."""
    builder = TopologyBuilder("filling", Config(max_spout_pending=2_000, message_timeout_secs=300))
    builder.set_spout("texts", QueueSpout(FILLING, fields="number long, text string"))
    builder.set_bolt("part", Part(), parallelism=2).shuffle_grouping("texts")
    builder.set_bolt("count", Count(), parallelism=2).fields_grouping("part", "number")
    return builder.build()


def odd():
    """Build a topology that sends whole bodies through two bolts."""
    builder = TopologyBuilder("odd-load")
    builder.set_spout("bodies", QueueSpout(ODD, fields="body binary"))
    builder.set_bolt("pass", Pass(), parallelism=2).shuffle_grouping("bodies")
    builder.set_bolt("digest", Digest(), parallelism=2).shuffle_grouping("pass")
    return builder.build()


def vanished(spark_options=None):
    """Build a topology without timeouts, and with one bolt task per executor."""
    builder = TopologyBuilder(
        "vanished", Config(message_timeout_secs=300, spark_options=spark_options or {})
    )
    builder.set_spout("numbers", QueueSpout(VANISHED, fields="number long", format="json"))
    builder.set_bolt("tally", Tally(), parallelism=2).fields_grouping("numbers", "number")
    return builder.build()


def given_up():
    """Make Spark give up an executor after twenty seconds of silence instead of two minutes."""
    silence = {
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "5s",
    }
    return vanished(silence)

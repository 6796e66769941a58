"""The topology of the fault tests: numbered messages, a fan-out of ten, a fields grouping, and effects that survive.

An effect is a line in a file of the process that had it, written before the ack: no server that a test kills can lose it.
Faults that must strike at one moment of a step are ordered by a file, and carried out by the bolt that is there then.
"""

import os
import random
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

from queues import QueueSpout, RetryPolicy
from spark_jobs import BasicBolt, Config, TopologyBuilder

NAME = "numbered"
QUEUE = "numbered"
FAN_OUT = 10
SPOUTS = 2
PREFETCH = 1_000
IN_FLIGHT = SPOUTS * PREFETCH
"""Messages that the broker waits for at once, and so the most that one fault may have processed again."""
EFFECTS = "TIERCEL_TEST_EFFECTS"
"""Names the folder of the effects."""


class Order:
    """A fault that one bolt task carries out, once, as soon as it gets there."""

    IN_THE_FIRST_BOLT = "in-the-first-bolt"
    AFTER_THE_ACKS = "after-the-acks"
    IN_THE_SECOND_BOLT = "in-the-second-bolt"
    OTHER_WORK = "other-work"
    THEN_KILL = "then-kill"
    LATE_IN_THE_SECOND_BOLT = "late-in-the-second-bolt"
    """When what the first bolt sent is committed long since."""
    UNSTEADY = "unsteady"
    """Not carried out once, but as long as it stands: what is emitted hangs on the process."""
    RAISE = "raise"
    """Not carried out once, but as long as it stands: one tuple in a hundred fails."""

    @staticmethod
    def place(folder: Path) -> Path:
        """Where orders for a folder of effects lie."""
        return folder.with_name(folder.name + "-orders")

    @staticmethod
    def stands(name: str) -> bool:
        return (Order.place(Path(os.environ[EFFECTS])) / name).exists()

    @staticmethod
    def taken(name: str) -> bool:
        """Whether it is ours to carry out."""
        try:
            (Order.place(Path(os.environ[EFFECTS])) / name).unlink()
        except FileNotFoundError:
            return False
        return True


def kill_the_executor() -> None:
    """The JVM that runs this task: the parent of the daemon that forked this Python worker."""
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)


class FanOut(BasicBolt):
    output_fields = "number long, part long, bucket string"

    def prepare(self, config, context):
        self.raising = self.other = self.unsteady = False

    def execute(self, tup, collector):
        if self.raising and random.random() < 0.01:
            raise ValueError("one in a hundred")
        shift = os.getpid() if self.other or self.unsteady else 0
        for part in range(FAN_OUT):
            collector.emit([tup["number"], part, f"bucket {(tup['number'] + part + shift) % 97}"])

    def flush(self, collector):
        self.raising, self.unsteady = Order.stands(Order.RAISE), Order.stands(Order.UNSTEADY)
        if Order.taken(Order.IN_THE_FIRST_BOLT):
            kill_the_executor()
        if Order.taken(Order.AFTER_THE_ACKS):
            threading.Timer(0.1, kill_the_executor).start()
        if self.other and Order.taken(Order.THEN_KILL):
            threading.Timer(0.1, kill_the_executor).start()
        # From the next step on it emits to buckets that hang on the process, as a bolt does that is not deterministic.
        self.other = Order.taken(Order.OTHER_WORK)


class Record(BasicBolt):
    def prepare(self, config, context):
        self.lines = []

    def execute(self, tup, collector):
        self.lines.append(f"{tup['number']} {tup['part']}\n")

    def flush(self, collector):
        if Order.taken(Order.IN_THE_SECOND_BOLT):
            kill_the_executor()
        if Order.taken(Order.LATE_IN_THE_SECOND_BOLT):
            time.sleep(2)
            kill_the_executor()
        path = Path(os.environ[EFFECTS]) / str(os.getpid())
        with path.open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()


def topology():
    builder = TopologyBuilder(NAME, Config(message_timeout_secs=15, shutdown_grace_secs=5))
    retry = RetryPolicy(first=timedelta(milliseconds=50), longest=timedelta(seconds=1))
    spout = QueueSpout(QUEUE, fields="number long", format="json", retry=retry, prefetch=PREFETCH)
    builder.set_spout("numbers", spout, parallelism=SPOUTS)
    builder.set_bolt("fan-out", FanOut(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("record", Record(), parallelism=2).fields_grouping("fan-out", "bucket")
    return builder.build()

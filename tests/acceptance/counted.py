"""Words counted in a state, while executors die behind the counting bolt: its tasks are repeated after they committed."""

import os
import signal
from pathlib import Path

from examples.word_count import SplitSentence
from queues import QueueSpout
from spark_jobs import BasicBolt, Config, StatefulBolt, TopologyBuilder

NAME = "counted"
QUEUE = "counted"
ORDERS = "TIERCEL_TEST_ORDERS"
"""Names the folder in which a file is an order to kill, once: ``executor`` or ``worker``."""


class Count(StatefulBolt):
    output_fields = "word string, n long"

    def execute(self, tup, collector):
        collector.emit([tup["word"], self.state.increment(tup["word"])])


class Killer(BasicBolt):
    def flush(self, collector):
        if taken("worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        if taken("executor"):
            # The parent of the daemon that forked this Python worker; the shuffle files of the level before go with it.
            status = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)

    def execute(self, tup, collector):
        pass


def taken(order: str) -> bool:
    try:
        (Path(os.environ[ORDERS]) / order).unlink()
    except FileNotFoundError:
        return False
    return True


def topology():
    builder = TopologyBuilder(NAME, Config(ackers=2, message_timeout_secs=120, shutdown_grace_secs=2))
    builder.set_spout("sentences", QueueSpout(QUEUE, fields="sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), parallelism=3).fields_grouping("split", "word")
    builder.set_bolt("killer", Killer(), parallelism=2).shuffle_grouping("count")
    return builder.build()

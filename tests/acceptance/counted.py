"""Words counted in a state by tasks that are killed, on order, after their commit."""

import os
import signal
import threading
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, StatefulBolt, TopologyBuilder
from tiercel.acker.redis.clients import connect
from tiercel.examples.word_count import SplitSentence
from tiercel.spark_jobs.state.redis_shard import StateKeys

NAME = "counted"
QUEUE = "counted"
# Variable that names a folder: the file ``kill`` in it is an order, ``repeated-…`` says that a task
# found its own commit.
FOLDER = "TIERCEL_TEST_ORDERS"


class Count(StatefulBolt):
    output_fields = "word string, n long"

    def prepare(self, config, context):
        self.redis = connect(config["redis_url"])
        shard = context.task_index % config["ackers"]
        self.turn = StateKeys(NAME, shard, context.component).of(context.task_index)[2]

    def execute(self, tup, collector):
        collector.emit([tup["word"], self.state.increment(tup["word"])])

    def flush(self, collector):
        folder = Path(os.environ[FOLDER])
        if self.state.committed_digest:
            (folder / f"repeated-{os.getpid()}").touch()
        try:
            (folder / "kill").unlink()
        except FileNotFoundError:
            return
        committed = self.redis.hget(self.turn, "committed")
        threading.Thread(target=self.die_once_committed, args=(committed,), daemon=True).start()

    def die_once_committed(self, before):
        while self.redis.hget(self.turn, "committed") == before:
            pass
        os.kill(os.getpid(), signal.SIGKILL)


class Forget(BasicBolt):
    def execute(self, tup, collector):
        pass


def topology():
    builder = TopologyBuilder(
        NAME, Config(ackers=2, message_timeout_secs=120, shutdown_grace_secs=2)
    )
    builder.set_spout("sentences", QueueSpout(QUEUE, fields="sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), parallelism=3).fields_grouping("split", "word")
    builder.set_bolt("forget", Forget(), parallelism=2).shuffle_grouping("count")
    return builder.build()

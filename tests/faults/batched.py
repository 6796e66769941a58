"""A topology that writes batches into a database; some messages are bad, and one is deadly."""

import os
import signal
import sqlite3
from datetime import timedelta
from pathlib import Path

from tests.faults.deadly import EFFECTS
from tiercel import BatchBolt, Config, QueueSpout, RetryPolicy, TopologyBuilder

QUEUE = "batched"
DELIVERY_LIMIT = 2
_CREATE = "CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY CHECK (number >= 0))"


def database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "rows.db", timeout=30)


class Store(BatchBolt):
    size = 200
    wait_ms = 100
    on_error = "split"
    transient = frozenset({"database"})

    def prepare(self, config, context):
        self.database = database(Path(os.environ[EFFECTS]))
        with self.database:
            self.database.execute(_CREATE)

    def execute_batch(self, tuples, collector):
        if any(tup["deadly"] for tup in tuples):
            os.kill(os.getpid(), signal.SIGKILL)
        with self.database:
            self.database.executemany(
                "INSERT INTO rows VALUES (?) ON CONFLICT (number) DO NOTHING",
                [[tup["number"]] for tup in tuples],
            )


def topology():
    builder = TopologyBuilder("batched", Config(message_timeout_secs=60, shutdown_grace_secs=5))
    retry = RetryPolicy(first=timedelta(milliseconds=50), longest=timedelta(seconds=1))
    fields = "number long, deadly boolean"
    spout = QueueSpout(
        QUEUE, fields=fields, format="json", retry=retry, delivery_limit=DELIVERY_LIMIT
    )
    builder.set_spout("messages", spout)
    builder.set_bolt("store", Store()).shuffle_grouping("messages")
    return builder.build()

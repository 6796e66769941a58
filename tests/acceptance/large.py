"""Topologies that carry whole bodies through two bolts, or turn one message into many rows."""

import hashlib
import os
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder

QUEUE = "large"
FILES = "files"
ROW_BYTES = 100_000
EFFECTS = "TIERCEL_TEST_EFFECTS"


class Pass(BasicBolt):
    output_fields = "body binary"

    def execute(self, tup, collector):
        collector.emit([tup["body"]])


class Digest(BasicBolt):
    def execute(self, tup, collector):
        body = tup["body"]
        (Path(os.environ[EFFECTS]) / hashlib.sha256(body).hexdigest()).write_text(str(len(body)))


def topology():
    builder = TopologyBuilder("large", Config(shutdown_grace_secs=5))
    builder.set_spout("bodies", QueueSpout(QUEUE, fields="body binary"))
    builder.set_bolt("pass", Pass()).shuffle_grouping("bodies")
    builder.set_bolt("digest", Digest()).shuffle_grouping("pass")
    return builder.build()


class Explode(BasicBolt):
    """Emits the number of rows given in the message."""

    output_fields = "name string, rows int, row binary"

    def execute(self, tup, collector):
        for _ in range(tup["rows"]):
            collector.emit([tup["name"], tup["rows"], bytes(ROW_BYTES)])


class Gather(BasicBolt):
    """Writes a file once all rows of a message have arrived."""

    def prepare(self, config, context):
        self.rows = {}

    def execute(self, tup, collector):
        name = tup["name"]
        self.rows[name] = self.rows.get(name, 0) + 1
        if self.rows[name] == tup["rows"]:
            (Path(os.environ[EFFECTS]) / name).touch()


def exploding():
    builder = TopologyBuilder("exploding", Config(shutdown_grace_secs=5))
    spout = QueueSpout(
        FILES,
        "name string, rows int",
        delivery_limit=1,
    )
    builder.set_spout("files", spout)
    builder.set_bolt("explode", Explode(), parallelism=2).shuffle_grouping("files")
    builder.set_bolt("gather", Gather()).shuffle_grouping("explode")
    return builder.build()

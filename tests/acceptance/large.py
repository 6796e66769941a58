"""A topology that carries whole bodies through two bolts."""

import hashlib
import os
from pathlib import Path

from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder

QUEUE = "large"
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

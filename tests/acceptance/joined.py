"""A join of two queues: each message is held until the message of the other queue with its number
arrives.
"""

import os
from pathlib import Path

from tiercel import BasicBolt, Bolt, Config, QueueSpout, TopologyBuilder

NAME = "joined"
# Variable that names the folder of the effects.
EFFECTS = "TIERCEL_TEST_EFFECTS"


class Join(Bolt):
    output_fields = "number long, from_left long, from_right long, pairs long"

    def __init__(self):
        self.waiting = {}
        self.pairs = 0

    def execute(self, tup, collector):
        waiting = self.waiting.pop(tup["number"], None)
        if waiting is None or waiting.source_component == tup.source_component:
            # A message came twice: the newer tuple can still be acked, but the spout has given up
            # the older one.
            self.waiting[tup["number"]] = tup
            return
        left, right = sorted([waiting, tup], key=lambda side: side.source_component)
        self.pairs += 1
        collector.emit([tup["number"], left["value"], right["value"], self.pairs], [left, right])
        collector.ack(left)
        collector.ack(right)


class Record(BasicBolt):
    def prepare(self, config, context):
        self.lines = []

    def execute(self, tup, collector):
        self.lines.append(
            f"{tup['number']} {tup['from_left']} {tup['from_right']} {tup['pairs']}\n"
        )

    def flush(self, collector):
        with (Path(os.environ[EFFECTS]) / str(os.getpid())).open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()


def topology():
    # The bolt holds all messages of one side before it can ack any, so the bound cannot adapt by
    # itself.
    builder = TopologyBuilder(
        NAME, Config(message_timeout_secs=60, shutdown_grace_secs=2, max_spout_pending=1_000)
    )
    for side in ("left", "right"):
        builder.set_spout(side, QueueSpout(side, fields="number long, value long", format="json"))
    join = builder.set_bolt("join", Join(), parallelism=2)
    join.fields_grouping("left", "number").fields_grouping("right", "number")
    builder.set_bolt("record", Record(), parallelism=2).shuffle_grouping("join")
    return builder.build()

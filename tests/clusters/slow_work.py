"""Slow work: each number takes 0.2 s and is then counted in the state of ``work``."""

from __future__ import annotations

import time

from tiercel import QueueSpout, StatefulBolt, Topology, TopologyBuilder


class Work(StatefulBolt):
    def execute(self, tup, collector):
        time.sleep(0.2)
        self.state.increment(tup["number"])


def topology() -> Topology:
    builder = TopologyBuilder("slow-work")
    builder.set_spout("numbers", QueueSpout("numbers", fields="number string"))
    builder.set_bolt("work", Work(), parallelism=4).fields_grouping("numbers", "number")
    return builder.build()

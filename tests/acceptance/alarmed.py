"""A topology whose bolts misbehave, each in its own way, while a file orders it.

Messages say which bolt they are for: see ``KINDS``.
"""

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

from tiercel import (
    AsyncBolt,
    BasicBolt,
    Bolt,
    Config,
    QueueSpout,
    Reject,
    RetryPolicy,
    StatefulBolt,
    TopologyBuilder,
)

NAME = "alarmed"
QUEUE = "alarmed"
# Variable that names the folder of the orders.
FOLDER = "TIERCEL_TEST_ALARMED"
BROKEN = "broken"
TIMEOUT_S = 10
# Longer than half of the timeout, which is the target for the latency.
SLOW_S = 6.0
CRAWL_S = 0.5
# Messages per second of each kind while bolts are broken.
KINDS = {"good": 20, "raise": 20, "hold": 2, "slow": 3, "renew": 1, "crawl": 40, "reject": 1}
STREAMS = dict.fromkeys(("good", "hold", "slow", "renew", "crawl"), "number long")


def broken() -> bool:
    return (Path(os.environ[FOLDER]) / BROKEN).exists()


def lasts(seconds: float) -> None:
    """Take this long, or until the bolts are mended."""
    until = time.monotonic() + seconds
    while broken() and time.monotonic() < until:
        time.sleep(0.05)


class Parted(BasicBolt):
    """Sends each kind on its own stream, and fails at once the kind that other bolts fail later."""

    output_streams = STREAMS

    def execute(self, tup, collector):
        kind = tup["kind"]
        if broken() and kind == "raise":
            raise ValueError("the service is down")
        if broken() and kind == "reject":
            raise Reject("nobody ordered it")
        if kind in self.output_streams:
            collector.emit([tup["number"]], stream=kind)


class Hold(Bolt):
    def execute(self, tup, collector):
        if not broken():
            collector.ack(tup)


class Slow(AsyncBolt):
    async def execute(self, tup, collector):
        if broken():
            await asyncio.sleep(SLOW_S)


class Renew(Bolt):
    """Holds messages and restarts their timeouts, so that they outlive them."""

    def prepare(self, config, context):
        self.held = []

    def execute(self, tup, collector):
        if not tup.is_tick:
            self.held.append(tup)
        for each in self.held:
            collector.reset_timeout(each) if broken() else collector.ack(each)
        if not broken():
            self.held = []


class Crawl(BasicBolt):
    def execute(self, tup, collector):
        lasts(CRAWL_S)


class Count(StatefulBolt):
    def execute(self, tup, collector):
        self.state.increment("good")


def topology():
    """A message stays in back-off for longer than a scaled alert waits."""
    settings = Config(
        message_timeout_secs=TIMEOUT_S, max_spout_pending=2_000, shutdown_grace_secs=2
    )
    retry = RetryPolicy(first=timedelta(seconds=5), longest=timedelta(seconds=5))
    builder = TopologyBuilder(NAME, settings)
    fields = "kind string, number long"
    spout = QueueSpout(QUEUE, fields=fields, format="json", retry=retry, prefetch=2_000)
    builder.set_spout("messages", spout)
    builder.set_bolt("parted", Parted()).shuffle_grouping("messages")
    builder.set_bolt("count", Count()).shuffle_grouping("parted", stream="good")
    builder.set_bolt("hold", Hold()).shuffle_grouping("parted", stream="hold")
    builder.set_bolt("slow", Slow()).shuffle_grouping("parted", stream="slow")
    renew = builder.set_bolt("renew", Renew(), config={"tick_tuple_freq_secs": 2})
    renew.shuffle_grouping("parted", stream="renew")
    crawl = builder.set_bolt("crawl", Crawl())
    crawl.fields_grouping("parted", "number", stream="crawl")
    return builder.build()

"""Topologies of waiting work, for faults that strike meanwhile: a bolt that wants each message
later, once, then one whose calls last longer than messages live; and a bolt with a rate limit.

Executions survive in a file per number in the folder of the effects, a line for each.
"""

import os
import signal
import time
from pathlib import Path

from tests.faults.deadly import EFFECTS
from tiercel import BasicBolt, Config, QueueSpout, RetryLater, TopologyBuilder
from tiercel.queues.publishing.copies import Copies, CopyFate

QUEUE = "waiting"
LIMITED_QUEUE = "limited"
TIMEOUT_S = 15.0
LATER_S = 2.0
LONG_S = 1.25 * TIMEOUT_S
# Numbers whose calls take long.
LONG = frozenset({1_000})
RATE = 20
# A file whose existence is an order to kill the spout worker.
ARMED = "armed"


def executed(folder: Path, bolt: str, number: int) -> list[tuple[float, int]]:
    """Return the time and the process of each execution."""
    try:
        lines = (folder / f"{bolt}-{number}").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(float(at), int(pid)) for at, pid in (line.split() for line in lines)]


def _note(bolt: str, number: int) -> int:
    """Record an execution; return how many there are."""
    folder = Path(os.environ[EFFECTS])
    with (folder / f"{bolt}-{number}").open("a") as file:
        file.write(f"{time.time()} {os.getpid()}\n")
    return len(executed(folder, bolt, number))


class DyingSpout(QueueSpout):
    """Dies once, after a copy was confirmed and before its original is acked."""

    def open(self, config, context):
        opened = Copies.__init__

        def dying(copies, dead_letters, delays, told):
            def tell(delivery, fate):
                order = Path(os.environ[EFFECTS]) / ARMED
                if fate is CopyFate.DELAYED and order.exists():
                    order.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
                told(delivery, fate)

            opened(copies, dead_letters, delays, tell)

        Copies.__init__ = dying
        super().open(config, context)


class Later(BasicBolt):
    output_fields = "number long"

    def execute(self, tup, collector):
        if _note("later", tup["number"]) == 1 and tup["number"] not in LONG:
            raise RetryLater(LATER_S, "not yet")
        collector.emit([tup["number"]])


class Long(BasicBolt):
    def execute(self, tup, collector):
        _note("long", tup["number"])
        if tup["number"] in LONG:
            time.sleep(LONG_S)


class Limited(BasicBolt):
    def execute(self, tup, collector):
        _note("limited", tup["number"])


def topology():
    builder = TopologyBuilder(
        "waiting", Config(message_timeout_secs=TIMEOUT_S, shutdown_grace_secs=5)
    )
    builder.set_spout("numbers", DyingSpout(QUEUE, fields="number long", format="json"))
    builder.set_bolt("later", Later(), parallelism=2).shuffle_grouping("numbers")
    long = builder.set_bolt("long", Long(), 2, config={"execute_timeout_secs": 120})
    long.shuffle_grouping("later")
    return builder.build()


def limited():
    builder = TopologyBuilder(
        "limited", Config(message_timeout_secs=TIMEOUT_S, shutdown_grace_secs=5)
    )
    builder.set_spout("numbers", QueueSpout(LIMITED_QUEUE, fields="number long", format="json"))
    config = {"rate_limit": f"{RATE}/s"}
    builder.set_bolt("limited", Limited(), 2, config=config).shuffle_grouping("numbers")
    return builder.build()

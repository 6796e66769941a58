"""A topology of two bolts with an order per key, one with calls under way and one without, and a
log of each beginning and success in order of time.
"""

import asyncio
import os
import random
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

from tests.faults.deadly import EFFECTS
from tiercel import AsyncBolt, BasicBolt, Config, QueueSpout, RetryPolicy, TopologyBuilder

QUEUE = "ordered"
FAILS = 0.01
_ORDER = {"ordered_by": "key"}


def _note(bolt, what, tup):
    """Append to a file shared by all processes; one write of a line is atomic."""
    line = f"{what} {tup['key']} {tup['number']}\n".encode()
    file = os.open(Path(os.environ[EFFECTS]) / bolt, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def _may_fail(tup):
    if random.random() < FAILS:
        raise ValueError(f"{tup['number']} of {tup['key']} fails")


class Call(AsyncBolt):
    output_fields = "key string, number long"

    async def execute(self, tup, collector):
        _note("call", "begins", tup)
        await asyncio.sleep(random.random() / 100)
        _may_fail(tup)
        _note("call", "succeeds", tup)
        collector.emit(tup.values)


class Store(BasicBolt):
    def execute(self, tup, collector):
        _note("store", "begins", tup)
        _may_fail(tup)
        _note("store", "succeeds", tup)


def topology():
    builder = TopologyBuilder("ordered", Config(shutdown_grace_secs=5))
    retry = RetryPolicy(first=timedelta(milliseconds=50), longest=timedelta(seconds=1))
    spout = QueueSpout(QUEUE, fields="key string, number long", format="json", retry=retry)
    builder.set_spout("messages", spout)
    builder.set_bolt("call", Call(), parallelism=2, config=_ORDER).fields_grouping(
        "messages", "key"
    )
    builder.set_bolt("store", Store(), parallelism=2, config=_ORDER).fields_grouping("call", "key")
    return builder.build()


def lines_of(folder: Path, bolt: str) -> list[tuple[str, str, int]]:
    """Return a bolt's log as (event, key, number)."""
    try:
        lines = (folder / bolt).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(what, key, int(number)) for what, key, number in (line.split() for line in lines)]


def succeeded(folder: Path, bolt: str) -> int:
    """Return the number of tuples that succeeded in a bolt."""
    return len({line[1:] for line in lines_of(folder, bolt) if line[0] == "succeeds"})


def inversions(folder: Path, bolt: str) -> list[tuple[str, int, int]]:
    """Return the key, number and line of each tuple that began before its predecessor had
    succeeded.
    """
    next_of: dict[str, int] = defaultdict(int)
    found = []
    for at, (what, key, number) in enumerate(lines_of(folder, bolt)):
        if number > next_of[key]:
            found.append((key, number, at))
        elif number == next_of[key] and what == "succeeds":
            next_of[key] += 1
    return found

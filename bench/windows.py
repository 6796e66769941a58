"""The cost of windows: sentences per second whose words are summed in windows of ten seconds, and
counted without windows; and what a task costs that holds 2,000 tuples, and 200,000.

    python bench/windows.py [--sentences N] [--rounds N] [--held N]

The messages are the same with windows and without: ten words of 1,000 and a time; 10,000 messages
make a window of ten seconds. Both topologies are warmed up, run at the same time and take turns, so
that they meet the same conditions. A task that holds tuples runs in this process, with its inbox on
a private Redis. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from itertools import count as numbers
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis

from bench.processes import largest
from bench.rig import BenchError, Running, fill, running, servers, until
from bench.server import redis_server
from bench.throughput import drain
from tests.support.pump import Pump, Source
from tiercel import BasicBolt, TopologyBuilder, WindowedBolt, tumbling
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.contract import WINDOWS_CLOSED, WINDOWS_LATE, total_of
from tiercel.spark_jobs.topology.graph import ledger_spec_of
from tiercel.workers.config import Settings

KINDS = ("counted", "summed")
KEYS = 1_000
_LENGTH = timedelta(seconds=10)
_LAG = timedelta(seconds=1_000)
_LENGTH_MS = 10_000
# Beginning of the window that stays open, and of the first one that closes.
_HELD_MS = 1_700_000_000_000
_FIRST_MS = _HELD_MS - 1_000_000
# From the first message of a queue to that of the next one: while no messages come, event time goes
# on with the clock, and closes windows.
_APART_MS = 10_000_000
_WARM_UP = 20_000
_FEW = 2_000
_AT_ONCE = 5_000
# Processes report their counters each second.
_REPORTED_S = 2.0
# While a task that holds tuples is killed: windows close that often, for that long each time.
_FED_S, _CLOSING_S = 0.5, 15.0
_HOLD_S = 120.0
_STEPS = 21
# One key of eleven characters, and two numbers.
_FIELDS = "key string, at long, n long"
TUPLE_BYTES = 11 + 8 + 8


def timed(times: Iterator[int], bodies: Iterator[bytes]) -> Iterator[bytes]:
    """Make a message of each sentence: with a time, and words of ``KEYS``."""
    for at, body in zip(times, bodies, strict=False):
        words = [f"word{int(word[4:]) % KEYS}" for word in body.decode().split()]
        yield json.dumps({"at": at, "sentence": " ".join(words)}).encode()


def counted(settings: Settings, topology: str, component: str) -> int:
    """Return the number of words in a state."""
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        return sum(map(int, client.hvals(f"tiercel:{{{topology}:0}}:state:{component}")))


def throughput(settings: Settings, sentences: int, rounds: int) -> list[float]:
    """Measure both topologies in turns; return the messages per second of each."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as exits:
        runs: dict[str, Callable[[int], float]] = {}
        for kind in KINDS:
            topology = exits.enter_context(
                running(kind, settings, module="bench.topologies.windowed")
            )
            topology.wait_until_ready()
            runs[kind] = partial(once, topology, kind, numbers(_HELD_MS, _APART_MS))
            runs[kind](_WARM_UP)
        for _ in range(rounds):
            for kind, run in runs.items():
                found[kind].append(run(sentences))
    return [statistics.median(found[kind]) for kind in KINDS]


def once(topology: Running, kind: str, starts: Iterator[int], sentences: int) -> float:
    """Drain a queue; return the messages per second between a tenth and nine of them."""

    def publish(settings: Settings, queue: str, bodies: Iterator[bytes]) -> int:
        return fill(settings, queue, timed(numbers(next(starts)), bodies))

    words = partial(
        counted, topology.settings, topology.name, "add" if kind == "summed" else "count"
    )
    try:
        drained = drain(topology, kind, sentences, publish, words)
    except BenchError as error:
        time.sleep(_REPORTED_S)
        late = topology.totals("count")[WINDOWS_LATE]
        raise BenchError(f"{error}; {late:,} words were late") from error
    print(drained.line(), flush=True)
    return drained.steady_per_s or drained.whole_per_s


class Holding(WindowedBolt):
    """Holds tuples of one window, while earlier windows close."""

    window = tumbling(_LENGTH)
    timestamp_field = "at"
    lag = _LAG
    max_held = 1_000_000
    output_fields = "n long"

    def execute(self, window: object, collector: object) -> None:
        pass


class Nothing(BasicBolt):
    """Executes no tuple."""


def held(url: str, count: int, *, named: bool = False) -> dict[str, float]:
    """Measure a task that holds this number of tuples: bytes of Redis per tuple, the median step
    that closes a window, and the time until a new process has closed the first.

    ``named``: each message has an identity.
    """
    builder = TopologyBuilder(f"bench-{secrets.token_hex(4)}")
    builder.set_spout("spout", Source(_FIELDS))
    builder.set_bolt("windows", Holding()).fields_grouping("spout", "key")
    builder.set_bolt("end", Nothing()).shuffle_grouping("windows")
    topology = builder.build()
    spec = ledger_spec_of(topology, (url,))
    with closing(open_inboxes(spec)) as inboxes, redis.Redis.from_url(url) as client:
        pump = Pump(topology, inboxes=inboxes)
        [task] = topology.task_ids("windows")
        before = client.info("memory")["used_memory"]
        # All are in a window that stays open, far behind those that close.
        for first in range(0, count, _AT_ONCE):
            rows = range(first, min(count, first + _AT_ONCE))
            names = [secrets.token_hex(8) for _ in rows] if named else None
            values = ([f"key{n % KEYS:08}", _HELD_MS + n % 9_000, n] for n in rows)
            pump.feed(*values, identities=names)
            pump.send()
            pump.work(task)
        size = (client.info("memory")["used_memory"] - before) / count
        begins = numbers(1)
        steps = [closes_one(pump, task, next(begins)) for _ in range(_STEPS)]
        began = time.perf_counter()
        pump.take_over(task)
        closes_one(pump, task, next(begins))
        again = time.perf_counter() - began
    return {"bytes": size, "step_s": statistics.median(steps), "again_s": again}


def closes_one(pump: Pump, task: int, number: int) -> float:
    """Have a window of one tuple close; return the time that it took."""
    early, ahead = _FIRST_MS + number * _LENGTH_MS, _HELD_MS + number * _LENGTH_MS
    pump.feed(["key00000001", early, 0], ["key00000001", ahead + _LENGTH_MS, 0])
    pump.send()
    closed = total(pump)
    began = time.perf_counter()
    while total(pump) == closed:
        pump.work(task)
    return time.perf_counter() - began


def total(pump: Pump) -> int:
    """Return the number of windows that have closed."""
    pump.counting.flush()
    return total_of(pump.metrics.totals(), "windows")[WINDOWS_CLOSED]


def killed(settings: Settings, count: int) -> list[float]:
    """Have a topology hold this number of tuples, and kill the process that holds them while
    windows of other tuples close twice a second. Return the longest time without a result, without
    a kill and after each, in seconds.
    """
    with running("held", settings, module="bench.topologies.windowed") as topology:
        topology.wait_until_ready()
        topology.tolerated = count
        fill(settings, topology.queue, _open_window(count))
        until(lambda: topology.check() or topology.held() >= count, _HOLD_S, "all to be held")
        closed = partial(counted, settings, topology.name, "add")
        found: list[float] = []
        windows = numbers(1)
        for kill in (False, True, True):
            gaps = [0.0]
            if kill:
                os.kill(largest("Spark's Python"), signal.SIGKILL)
            before, since = closed(), time.monotonic()
            end = since + _CLOSING_S
            fed_at = since
            while (now := time.monotonic()) < end:
                if now >= fed_at:
                    number = next(windows)
                    fill(settings, topology.queue, _closing(number))
                    fed_at += _FED_S
                if (done := closed()) != before:
                    gaps.append(now - since)
                    before, since = done, now
                time.sleep(0.01)
            found.append(max(*gaps, end - since))
            told = "killed" if kill else "calm"
            print(f"{told}: {found[-1]:.2f} s without a result", flush=True)
        return found


def _open_window(count: int) -> Iterator[bytes]:
    """Return messages of ten words each, ``count`` in all, of one window."""
    for first in range(0, count, 10):
        words = " ".join(f"word{n % KEYS}" for n in range(first, first + 10))
        yield json.dumps({"at": _HELD_MS + first % 9_000, "sentence": words}).encode()


def _closing(number: int) -> Iterator[bytes]:
    """Return messages that close a window of one tuple; see ``closes_one``."""
    for at in (_FIRST_MS + number * _LENGTH_MS, _HELD_MS + (number + 1) * _LENGTH_MS):
        yield json.dumps({"at": at, "sentence": "word1"}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="The price of windows.")
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--held", type=int, default=200_000)
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with redis_server(None) as url:
        for count in (_FEW, arguments.held):
            found = held(url, count)
            print(f"{count:,} held: {found}", flush=True)
            figures |= {f"{name}_{count}": value for name, value in found.items()}
        found = held(url, arguments.held, named=True)
        print(f"{arguments.held:,} held, with identities: {found}", flush=True)
        figures |= {f"{name}_named": value for name, value in found.items()}
    with servers() as settings:
        calm_s, *killed_s = killed(settings, arguments.held)
        figures |= {"calm_s": calm_s, "killed_s": statistics.median(killed_s)}
        per_s = throughput(settings, arguments.sentences, arguments.rounds)
    figures |= {"counted_per_s": per_s[0], "summed_per_s": per_s[1], "ratio": per_s[1] / per_s[0]}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

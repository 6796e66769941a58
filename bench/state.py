"""Costs of state: a step of ten keys in a state of a million others, and updates per second.

    python bench/state.py [--redis redis://host:6379/0]

Without --redis it starts a private redis-server. Figures go to standard output; the last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.server import redis_server
from tiercel import KeyValueState
from tiercel.acker.effects import Effect, perform_in_turn
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.state.key_value import StateCache
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import StateTurn, Writes

_TEN = [f"key {number}" for number in range(10)]
_FILLED_AT_ONCE = 50_000
# Number of steps with ten keys, number of steps with many keys, and number of these keys.
_SMALL = 500
_LARGE = 20
_TOUCHED = 20_000


class StateBench:
    """The state of one component on one shard, for one step after the other."""

    def __init__(self, url: str) -> None:
        topology = f"bench-{secrets.token_hex(4)}"
        self.spec = LedgerSpec(
            topology=topology,
            urls=(url,),
            shards=1,
            owners=1,
            message_timeout=timedelta(seconds=30),
        )
        self._store = RedisStateStore(self.spec, run_number=1)
        self._cache = StateCache()
        self._step = 0

    def fill(self, count: int) -> None:
        """Write ``count`` entries of other keys."""
        for start in range(0, count, _FILLED_AT_ONCE):
            end = min(start + _FILLED_AT_ONCE, count)
            writes = Writes(puts={b'"word %d"' % number: b"1" for number in range(start, end)})
            perform_in_turn(self._next().perform().writing(writes, "fill"))

    def run(self, keys: Sequence[str]) -> float:
        """Make a step that increments each key: read in bulk, execute, commit.

        Returns the seconds it took.
        """
        began = time.perf_counter()
        state = KeyValueState(self._cache)
        state.open(self._next(state.unread(keys)).perform(), keys)

        def add(key: str) -> None:
            state.increment(key)

        increment = state.guarded(add)
        for key in keys:
            increment(key)
        perform_in_turn(state.writing("run"))
        state.written()
        return time.perf_counter() - began

    def entries(self) -> int:
        return sum(1 for _ in self._store.entries("count"))

    def close(self) -> None:
        self._store.close()

    def _next(self, fields: Sequence[bytes] = ()) -> Effect[StateTurn]:
        self._step += 1
        return self._store.begin("count", 0, self._step, fields)


def small_batches(url: str, entries: int) -> float:
    """Return the median milliseconds of a step with ten keys, in a state of ``entries`` others."""
    bench = StateBench(url)
    bench.fill(entries)
    times = [bench.run(_TEN) for _ in range(_SMALL)]
    if bench.entries() != entries + len(_TEN):
        raise RuntimeError("entries were lost")
    bench.close()
    connect(url).flushdb()
    return 1000 * statistics.median(times[_SMALL // 10 :])


def updates_a_second(url: str) -> tuple[float, float]:
    """Return the keys that one task increments per second in large steps, and the milliseconds of
    the longest call in the server.
    """
    bench = StateBench(url)
    keys = [f"word {number}" for number in range(_TOUCHED)]
    bench.run(keys)
    client = connect(url)
    client.config_set("slowlog-log-slower-than", 100)
    client.slowlog_reset()
    spent = sum(bench.run(keys) for _ in range(_LARGE))
    slowest = max((entry["duration"] for entry in client.slowlog_get(1000)), default=0) / 1000
    bench.close()
    return _LARGE * _TOUCHED / spent, slowest


def main() -> None:
    """Measure all figures and print them."""
    parser = argparse.ArgumentParser(description="What the state costs.")
    parser.add_argument(
        "--redis", help="URL of a server whose database may be FLUSHED; default: a private one"
    )
    with redis_server(parser.parse_args().redis) as url:
        empty = small_batches(url, 0)
        million = small_batches(url, 1_000_000)
        print(
            f"a step of ten keys: {empty:.2f} ms in an empty state, {million:.2f} ms beside "
            "1,000,000 entries"
        )
        print(f"ratio: {million / empty:.2f}")
        updates, slowest = updates_a_second(url)
        print(
            f"{updates:,.0f}keys incremented per second, by one task, {_TOUCHED:,} per "
            f"step; longest call {slowest:.1f} ms"
        )
        figures = {
            "state_ten_keys_empty_ms": round(empty, 3),
            "state_ten_keys_million_ms": round(million, 3),
            "state_million_ratio": round(million / empty, 2),
            "state_updates_per_s": round(updates),
            "state_longest_call_ms": round(slowest, 1),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

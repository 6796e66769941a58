"""The cost of effects that take place once: messages per second with ``once`` and without, bytes
per remembered tuple, rows per second into PostgreSQL, by one connection and through a topology.

    python bench/once.py [--sentences N] [--rounds N] [--marks N] [--rows N]

A message becomes ten tuples of the stateful bolt (the words of a sentence) in one kind of topology,
and one tuple (an order) in the other. The messages are the same with ``once`` and without, each
with an id. Both topologies are warmed up, run at the same time and take turns, so that they meet
the same conditions. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sqlalchemy import text

from bench.probe import environment
from bench.properties import fill_whole
from bench.rig import WORDS, running, servers
from bench.server import redis_server
from bench.throughput import drain
from bench.topologies.rows import DATABASE
from tests.support.postgres import EmbeddedPostgres
from tiercel.acker.effects import perform_in_turn
from tiercel.acker.ids import Said
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.database.engine import engine_of
from tiercel.spark_jobs.database.rows import Row, WriterSettings
from tiercel.spark_jobs.database.writer import Writer
from tiercel.spark_jobs.running.once import pack_emissions
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import Writes
from tiercel.workers.config import Settings

SENTENCES = ("repeatedly", "once")
ORDERS = ("ordered", "ordered_once")
_DAY_S = 86_400
_AT_ONCE = 1_000
# Orders take less time.
ORDERS_PER_SENTENCE = 2


def bytes_per_mark(count: int) -> float:
    """Measure the bytes that Redis needs to remember a tuple that emitted a word and a number."""
    with redis_server(None) as url, connect(url) as client:
        spec = LedgerSpec(
            topology=f"bench-{secrets.token_hex(4)}",
            urls=(url,),
            shards=1,
            owners=1,
            message_timeout=timedelta(seconds=30),
        )
        store = RedisStateStore(spec, run_number=1)
        before = _memory(client)
        for step in range(1, count // _AT_ONCE + 1):
            turn = store.begin("count", 0, step).perform()
            marks = {
                secrets.token_bytes(16): bytes(16)
                + pack_emissions([("default", ("falcon", number), None, 0)])
                for number in range(step, step + _AT_ONCE)
            }
            perform_in_turn(turn.writing(Writes(marks=marks), "bench"))
        store.close()
        return (_memory(client) - before) / count


def rows_per_s(count: int) -> float:
    """Measure rows per second of one connection, with three columns and a key per row."""
    with EmbeddedPostgres() as server:
        engine = engine_of(server.url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE booked (id bigint, name text, cents bigint)"))
        settings = WriterSettings(table="booked", upsert=False, write=None, retention_s=_DAY_S)
        writer = Writer(engine, settings)
        rows = [
            Row(
                key=secrets.token_bytes(16),
                said=Said(content=1 << 127, short=1),
                values={"id": number, "name": f"name {number}", "cents": number},
            )
            for number in range(count)
        ]
        began = time.perf_counter()
        for start in range(0, count, _AT_ONCE):
            writer.write(rows[start : start + _AT_ONCE])
        took = time.perf_counter() - began
        writer.close()
        return count / took


def rows_through_a_topology(settings: Settings, sentences: int, rounds: int) -> float:
    """Measure rows per second of a whole topology: each word of a sentence is a row."""
    with EmbeddedPostgres() as server, environment({DATABASE: server.url}):
        engine = engine_of(server.url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE words (word text)"))

        def counted() -> int:
            with engine.begin() as connection:
                return int(connection.execute(text("SELECT count(*) FROM words")).scalar_one())

        found = []
        with running("stored", settings, module="bench.topologies.rows") as topology:
            topology.warm_up()
            for _ in range(rounds):
                drained = drain(topology, "stored", sentences, fill_whole, counted)
                print(drained.line(), flush=True)
                found.append(WORDS * drained.whole_per_s)
        engine.dispose()
        return statistics.median(found)


def _memory(client: object) -> int:
    found: dict[str, int] = client.info("memory")  # type: ignore[attr-defined]
    return found["used_memory"]


def main() -> None:
    parser = argparse.ArgumentParser(description="The price of effects that take place once.")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--marks", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    size = bytes_per_mark(arguments.marks)
    print(f"{size:.1f} bytes per remembered tuple, {arguments.marks:,} of them", flush=True)
    rate = rows_per_s(arguments.rows)
    print(f"{rate:,.0f} rows per second into PostgreSQL, each once", flush=True)
    with servers() as settings:
        stored = rows_through_a_topology(settings, arguments.sentences, arguments.rounds)
        print(f"{stored:,.0f} rows per second through a topology, each once", flush=True)
        rounds = range(arguments.rounds)
        sentences = in_turns(settings, SENTENCES, arguments.sentences, rounds)
        orders = in_turns(settings, ORDERS, ORDERS_PER_SENTENCE * arguments.sentences, rounds)
    figures = {"repeatedly_per_s": sentences[0], "once_per_s": sentences[1]}
    figures |= {"ratio": sentences[1] / sentences[0], "ratio_orders": orders[1] / orders[0]}
    figures |= {"ordered_per_s": orders[0], "ordered_once_per_s": orders[1]}
    figures |= {"bytes_per_mark": size, "rows_per_s": rate, "stored_per_s": stored}
    print(json.dumps(figures))


def in_turns(settings: Settings, kinds: Sequence[str], count: int, rounds: range) -> list[float]:
    """Measure two topologies that take turns; return the messages per second of each."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as exits:
        topologies = {}
        for kind in kinds:
            module = "bench.topologies.orders" if kind in ORDERS else "bench.topologies.words"
            topologies[kind] = exits.enter_context(running(kind, settings, module=module))
            if kind in ORDERS:
                topologies[kind].words = 1
        for topology in topologies.values():
            topology.warm_up()
        for _ in rounds:
            for kind, topology in topologies.items():
                publish = fill_orders if kind in ORDERS else fill_whole
                drained = drain(topology, kind, count, publish)
                print(drained.line(), flush=True)
                found[kind].append(drained.whole_per_s)
    return [statistics.median(found[kind]) for kind in kinds]


def fill_orders(settings: Settings, queue: str, bodies: Iterator[bytes]) -> int:
    """Publish the first word of each body, as the customer of an order."""
    return fill_whole(settings, queue, (body.split()[0] for body in bodies))


if __name__ == "__main__":
    main()

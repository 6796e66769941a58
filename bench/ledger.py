"""Costs of the Redis ledger: bytes per pending root, and root updates per second.

    python bench/ledger.py [--redis redis://host:6379/0]

Without --redis it starts a private redis-server. Figures go to standard output; the last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.server import redis_server, server_seconds
from tiercel.acker.ids import RootIds, mix_array
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Ids, Token, Updates
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import RedisLedger

_REGISTERED_AT_ONCE = 2_000
_TASK_ROOTS = 20_000
_OWNERS = 2
_WRITERS = 2
PENDING = (1_000, 10_000, 100_000, 200_000, 1_000_000)
TREES = (1, 10, 1_000, 100_000)
LARGEST = PENDING[-1]
# Pending roots of the headline figures.
HEADLINE = 200_000


def spec_of(url: str) -> LedgerSpec:
    """Return the spec of a new ledger with one shard, to measure one Redis core."""
    return LedgerSpec(
        topology=f"bench-{secrets.token_hex(4)}",
        urls=(url,),
        shards=1,
        owners=_OWNERS,
        message_timeout=timedelta(seconds=30),
    )


def register(ledger: RedisLedger, count: int, ack_val: int, owner: int = 1) -> Ids:
    """Register ``count`` roots as a spout does; return them in ascending order."""
    drawn = RootIds(timedelta(seconds=30))
    roots = []
    for start in range(0, count, _REGISTERED_AT_ONCE):
        part = drawn.draw(min(_REGISTERED_AT_ONCE, count - start))
        if ledger.register(owner, part, [ack_val] * len(part)):
            raise RuntimeError("two roots collided")
        roots += part
    return np.sort(np.array(roots, np.uint64))


def bytes_a_root(url: str, pending: int, tuples: int) -> float:
    """Measure Redis' memory per root, with ``pending`` trees of ``tuples`` tuples.

    All tuples but one of each tree are acked.
    """
    client = connect(url)
    client.flushdb()
    ledger = RedisLedger(spec_of(url))
    # Load the scripts and allocate the connection's buffers before the measurement.
    warm = register(ledger, _REGISTERED_AT_ONCE, 1)
    ledger.apply(Token(run="warm", task=0, step=0), Updates(roots=warm, xors=np.ones_like(warm)))
    before = int(client.info("memory")["used_memory"])
    roots = register(ledger, pending, 1)
    # A task's update is the XOR of all tuples of a tree that it acks: the ledger cannot tell 10
    # tuples from 100,000.
    edges = np.bitwise_xor.reduce(mix_array(np.arange(tuples - 1, dtype=np.uint64)))
    ledger.apply(
        Token(run="tree", task=0, step=0), Updates(roots=roots, xors=np.full(roots.size, edges))
    )
    after = int(client.info("memory")["used_memory"])
    ledger.close()
    client.close()
    return (after - before) / pending


def _write(
    spec: LedgerSpec,
    shares: list[Ids],
    writer: int,
    barrier: Barrier,
    spans: Queue[tuple[float, float]],
) -> None:
    """Send updates as tasks of two bolts do: the first passes tuples on, the second ends trees."""
    ledger = RedisLedger(spec)
    ledger.forget([0])
    barrier.wait()
    began = time.time()
    for (step, roots), bolt in itertools.product(enumerate(shares), range(2)):
        change = mix_array(roots) if bolt == 0 else mix_array(roots) ^ np.uint64(1)
        token = Token(run="bench", task=_WRITERS * bolt + writer, step=step)
        reply = ledger.apply(token, Updates(roots=roots, xors=change))
        if reply.completed != bolt * roots.size:
            raise RuntimeError(f"{reply} for {roots.size} roots")
    spans.put((began, time.time()))


def updates_a_second(url: str, batches: int, others: int = 0) -> tuple[float, float]:
    """Measure root updates per second of two concurrent writers, and the fraction of time that the
    server was busy.

    ``others`` is a number of other roots that stay pending.
    """
    client = connect(url)
    client.flushdb()
    spec = spec_of(url)
    ledger = RedisLedger(spec)
    register(ledger, others, 1)
    # Each batch of roots is split over the tasks of a bolt, so that each writer updates a part of
    # every bucket.
    registered = [register(ledger, _WRITERS * _TASK_ROOTS, 1) for _ in range(batches)]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(_WRITERS + 1)
    spans = context.Queue()
    writers = [
        context.Process(
            target=_write,
            args=(spec, [roots[w::_WRITERS] for roots in registered], w, barrier, spans),
        )
        for w in range(_WRITERS)
    ]
    for writer in writers:
        writer.start()
    barrier.wait()
    busy_before = server_seconds(client)
    began, ended = zip(*[spans.get(timeout=300) for _ in writers], strict=True)
    busy = server_seconds(client) - busy_before
    for writer in writers:
        writer.join()
    if ledger.pending() != others:
        raise RuntimeError("roots were left over, or lost")
    elapsed = max(ended) - min(began)
    return 2 * batches * _WRITERS * _TASK_ROOTS / elapsed, busy / elapsed


def registrations_a_second(url: str, count: int) -> float:
    """Measure registrations per second of one spout task, in batches of 2,000 roots."""
    connect(url).flushdb()
    ledger = RedisLedger(spec_of(url))
    began = time.perf_counter()
    register(ledger, count, 1)
    return count / (time.perf_counter() - began)


def measure(
    url: str,
    pending_roots: Sequence[int] = PENDING,
    trees: Sequence[int] = TREES,
    batches: int = 15,
) -> dict[str, list[dict[str, float]]]:
    """Measure bytes per root by pending roots and by tree size, and updates per second by pending
    roots, of the two writers and of the server's core.
    """
    by_pending: list[dict[str, float]] = []
    for pending in pending_roots:
        updates, busy = updates_a_second(url, batches, pending)
        by_pending.append(
            {
                "pending": pending,
                "bytes_per_root": bytes_a_root(url, pending, 10),
                "updates_per_s": updates,
                "updates_per_core_s": updates / busy,
            }
        )
    by_tree = [
        {"tuples": tuples, "bytes_per_root": bytes_a_root(url, 10_000, tuples)} for tuples in trees
    ]
    return {"by_pending": by_pending, "by_tree": by_tree}


def lines(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Format the measurements as lines."""
    return [
        *(
            f"{row['pending']:>9,.0f} pending roots: {row['bytes_per_root']:5.1f} bytes per root,"
            f" {row['updates_per_s']:>9,.0f} root updates per second by {_WRITERS} writers"
            f" ({row['updates_per_core_s']:,.0f} per second of the server's core)"
            for row in found["by_pending"]
        ),
        *(
            f"trees of {row['tuples']:>7,.0f} tuples: {row['bytes_per_root']:5.1f} bytes per root"
            for row in found["by_tree"]
        ),
    ]


def main() -> None:
    """Measure all figures and print them."""
    parser = argparse.ArgumentParser(description="Bytes per pending root, root updates per second.")
    parser.add_argument(
        "--redis", help="URL of a server whose database may be FLUSHED; default: a private one"
    )
    parser.add_argument(
        "--largest", type=int, default=LARGEST, help="most pending roots (default: %(default)s)"
    )
    arguments = parser.parse_args()
    with redis_server(arguments.redis) as url:
        found = measure(url, [count for count in PENDING if count <= arguments.largest])
        print(*lines(found), sep="\n")
        print(
            f"{registrations_a_second(url, 200_000):,.0f}roots registered per second, by "
            "one spout task"
        )
        print(json.dumps(found))


if __name__ == "__main__":
    main()

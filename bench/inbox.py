"""Costs of steps, appends and hops: the constants of ``bench.scaling``.

    python bench/inbox.py [--redis redis://host:6379/0]

``calls``  CPU time of client and server for one call to an inbox, and its duration
``steps``  CPU time of a whole step of one tuple in a bolt task, from its inbox to the next
``hops``   time from the append in one process to the ``take`` in another, at steady rates
``idle``   CPU time and memory of an inbox that receives nothing

Without --redis it starts a private redis-server. Figures go to standard output; the first line says
which parser redis-py uses, hiredis if that is installed; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis

from bench.server import redis_server, server_seconds
from bench.steps import Row, percentiles, steps
from tiercel.acker.effects import Effect, perform_all, perform_in_turn
from tiercel.acker.inbox.chunk import Appended, Parcel
from tiercel.acker.inbox.contract import Bounds, Claims, Covered, Inbox, Inboxes, Sender
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.scripts import RedisServers

_RUN = "run"
_TASK = 4
_OTHER = 5
_CHUNK = 2_000
_LARGE = 32
# Bounds that are never reached here.
_UNBOUNDED = Bounds(tuples=10**9, bytes=10**9)
_NOW = timedelta(0)
# Digits of the time at the beginning of a payload.
_STAMP = 20
HOPS = (100, 1_000)
Measured = dict[str, dict[str, Row]]


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Repetitions and durations of the measurements."""

    calls: int = 1_000
    steps: int = 1_000
    hop_s: float = 5.0
    idle_s: float = 6.0


class InboxBench:
    """The inboxes of one topology on an empty server; the sender is task 1."""

    def __init__(self, url: str) -> None:
        self.client = connect(url)
        self.client.flushdb()
        self.inboxes: Inboxes = RedisInboxes(RedisServers([url]), _topology(), _UNBOUNDED)
        self.inboxes.adopt(_RUN, [_TASK, _OTHER])
        self.inbox: Inbox = self.inboxes.open(_RUN, _TASK, self.inboxes.draw(_RUN, _TASK))
        self._numbers = count(1)
        self._steps = count(1)

    def append(self, payload: bytes, target: int = _TASK) -> None:
        """Append one chunk of one tuple."""
        for effect in self._appending(payload, target):
            effect.perform()

    def seal_and_finish(self) -> None:
        """Seal and finish an empty step, in one round trip."""
        step = next(self._steps)
        perform_all([self.inbox.seal(Covered(step=step)), self.inbox.finish(step)])

    def commit(self, payload: bytes) -> None:
        """Make the calls of a step of one tuple: take, seal, append to two inboxes, finish."""
        step = next(self._steps)
        entries = self.inbox.take(1, 2**30, _NOW, None, Claims(0))
        whole = [entry.position for entry in entries]
        covered = Covered(step=step, whole=whole, tuples=len(whole), bytes=len(payload))
        onward = [*self._appending(payload, _TASK), *self._appending(payload, _OTHER)]
        perform_in_turn([self.inbox.seal(covered), *onward, self.inbox.finish(step)])

    def close(self) -> None:
        """Release the connections."""
        self.inboxes.close()
        self.client.close()

    def _appending(self, payload: bytes, target: int) -> list[Effect[Appended]]:
        parcel = Parcel(target=target, chunks=[payload], tuples=[1])
        sender = Sender(task=1, attempt=1)
        return self.inboxes.append(_RUN, sender, next(self._numbers), [parcel])


def _topology() -> str:
    return f"bench-{secrets.token_hex(4)}"


def calls(url: str, times: int) -> dict[str, Row]:
    """Measure each call: microseconds of CPU of client and server, and milliseconds it takes."""
    payload = b"x" * _CHUNK
    large = payload * _LARGE
    with closing(InboxBench(url)) as bench:

        def take_one() -> None:
            bench.inbox.take(1, 2**30, _NOW, None, Claims(0))

        found = {"ping": _measured(bench.client, bench.client.ping, times)}
        found["take nothing"] = _measured(bench.client, take_one, times)
        found["append 2 KB"] = _measured(bench.client, lambda: bench.append(payload), times)
        found["take 2 KB"] = _measured(bench.client, take_one, times)
        found["seal and finish"] = _measured(bench.client, bench.seal_and_finish, times)
        found["append 64 KB"] = _measured(bench.client, lambda: bench.append(large), times // 4)
    with closing(InboxBench(url)) as bench:
        bench.append(payload)
        found["commit"] = _measured(bench.client, lambda: bench.commit(payload), times)
    connect(url).flushdb()
    return found


def _measured(client: redis.Redis, call: Callable[[], object], times: int) -> Row:
    # The first call loads scripts and connects.
    call()
    server_before = server_seconds(client)
    client_before = time.process_time()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    client_s = time.process_time() - client_before
    server_s = server_seconds(client) - server_before
    return {
        **percentiles(took),
        "client_us": 1e6 * client_s / times,
        "server_us": 1e6 * server_s / times,
    }


def hops(url: str, seconds: float) -> dict[str, Row]:
    """Measure the milliseconds from an append in this process to the end of ``take`` in another."""
    return {str(rate): _hop(url, rate, int(rate * seconds)) for rate in HOPS}


def _hop(url: str, rate: int, messages: int) -> Row:
    context = multiprocessing.get_context("spawn")
    connect(url).flushdb()
    topology = _topology()
    inboxes = RedisInboxes(RedisServers([url]), topology, _UNBOUNDED)
    inboxes.adopt(_RUN, [_TASK])
    here, there = context.Pipe()
    taker = context.Process(target=_taker, args=(url, topology, messages, there), daemon=True)
    taker.start()
    here.recv()
    began = time.monotonic()
    for number in range(1, messages + 1):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        payload = f"{time.monotonic():0{_STAMP}.9f}".encode() + b"x" * _CHUNK
        parcel = Parcel(target=_TASK, chunks=[payload], tuples=[1])
        perform_all(inboxes.append(_RUN, Sender(task=1, attempt=1), number, [parcel]))
    took, cpu_s, taken_in = here.recv()
    taker.join()
    inboxes.close()
    connect(url).flushdb()
    return {
        **percentiles(took),
        "steps": float(taken_in),
        "client_us": 1e6 * cpu_s / max(1, taken_in),
    }


def _taker(url: str, topology: str, messages: int, answer: Connection) -> None:
    """Take until all messages have arrived, sealing and finishing each step."""
    inboxes = RedisInboxes(RedisServers([url]), topology, _UNBOUNDED)
    inbox = inboxes.open(_RUN, _TASK, inboxes.draw(_RUN, _TASK))
    took: list[float] = []
    answer.send("ready")
    cpu_before = time.process_time()
    step = 0
    while len(took) < messages:
        entries = inbox.take(1_000, 2**30, timedelta(seconds=5), None, Claims(0))
        now = time.monotonic()
        if not entries:
            break
        took += [now - float(entry.payload[:_STAMP]) for entry in entries]
        step += 1
        covered = Covered(
            step=step, whole=[entry.position for entry in entries], tuples=len(entries)
        )
        perform_all([inbox.seal(covered), inbox.finish(step)])
    answer.send((took, time.process_time() - cpu_before, step))
    inboxes.close()


def idle(url: str, seconds: float) -> Row:
    """Measure the milliseconds of CPU per minute of a waiting task, and the bytes of its inbox."""
    with closing(InboxBench(url)) as bench:
        bench.append(b"x" * _CHUNK)
        entries = bench.inbox.take(1, 2**30, _NOW, None, Claims(0))
        covered = Covered(
            step=1, whole=[entry.position for entry in entries], tuples=1, bytes=_CHUNK
        )
        perform_all([bench.inbox.seal(covered), bench.inbox.finish(1)])
        bench.inboxes.beat(_RUN, {_TASK: 1}, {}, "")
        names: list[bytes] = bench.client.keys(f"*:inbox:*}}:{_TASK}:*")  # type: ignore[assignment]
        size = sum(int(bench.client.memory_usage(name) or 0) for name in names)
        before = time.process_time()
        bench.inbox.take(1, 1, timedelta(seconds=seconds), None, Claims(0))
        used_ms = 1000 * (time.process_time() - before)
    connect(url).flushdb()
    return {"cpu_ms_per_minute": used_ms * 60 / seconds, "inbox_bytes": float(size)}


def measure(url: str, amount: Amount) -> Measured:
    """Measure all parts, by part and name."""
    return {
        "calls": calls(url, amount.calls),
        "steps": steps(url, amount.steps),
        "hops": hops(url, amount.hop_s),
        "idle": {"inbox": idle(url, amount.idle_s)},
    }


def parser() -> str:
    """Return the parser of Redis replies in this Python."""
    return "hiredis" if find_spec("hiredis") else "Python"


def lines(found: Measured) -> Iterator[str]:
    """Format the measurements as lines."""
    for part in ("calls", "steps"):
        for name, row in found[part].items():
            yield (
                f"{part[:-1]} {name:<16} p50 {row['p50_ms']:.3f} ms  p99 {row['p99_ms']:.3f} ms;"
                f" CPU: client {row['client_us']:.0f} us, server {row['server_us']:.0f} us"
            )
    for rate, row in found["hops"].items():
        yield f"hop at {rate}/s: p50 {row['p50_ms']:.3f} ms  p99 {row['p99_ms']:.3f} ms"
    inbox = found["idle"]["inbox"]
    yield (
        f"idle: {inbox['cpu_ms_per_minute']:.1f} ms of CPU per minute, {inbox['inbox_bytes']:.0f} "
        f"bytes"
    )


def main() -> None:
    """Measure all parts and print the figures."""
    asked = argparse.ArgumentParser(description="What steps, appends and hops cost.")
    asked.add_argument(
        "--redis", help="URL of a server whose database may be FLUSHED; default: a private one"
    )
    with redis_server(asked.parse_args().redis) as url:
        print(f"replies are parsed by {parser()}")
        found = measure(url, Amount())
        print(*lines(found), sep="\n")
        print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Messages per second through one bolt task that calls a web server, which answers after 100 ms: an
``AsyncBolt`` with 500 concurrent calls, compared with a ``BasicBolt`` that waits for each call.

    python bench/calls.py [--messages 40000] [--alone 300]

Both topologies run on private servers with default settings; the web server is a separate process.
Figures go to standard output; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from aiohttp import web

from bench.growth import seconds_to_drain
from bench.probe import environment
from bench.rig import running, servers
from bench.topologies.observed import ObservedSpout
from tiercel import (
    AsyncBolt,
    AsyncCollector,
    BasicBolt,
    BasicCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tiercel.workers.config import Settings

ANSWER_S = 0.1
CONCURRENCY = 500
# The variable that tells each process the port of the web server.
PORT = "BENCH_PORT"
# Number of messages before the measurement, in which the bound on tuples in flight grows to what
# the work allows.
_WARM_UP = {"calls": 10_000, "waits": 50}
_WITHIN_S = 240


class Call(AsyncBolt):
    """Calls the web server, with many calls at once."""

    concurrency = CONCURRENCY

    async def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self._url = f"http://127.0.0.1:{config['port']}/"
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def execute(self, tup: Tuple, collector: AsyncCollector) -> None:  # noqa: ARG002 - nothing to emit
        async with self._client.get(self._url) as answer:
            await answer.read()

    async def cleanup(self) -> None:
        await self._client.close()


class Wait(BasicBolt):
    """Calls the web server, and waits for the answer."""

    transient = frozenset({"_client"})

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        super().prepare(config, context)
        self._client = http.client.HTTPConnection("127.0.0.1", config["port"])

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self._client.request("GET", "/")
        self._client.getresponse().read()


def calls() -> Topology:
    return _calling("calls", Call())


def waits() -> Topology:
    return _calling("waits", Wait())


def _calling(kind: str, bolt: AsyncBolt | BasicBolt) -> Topology:
    builder = TopologyBuilder(f"bench-{kind}")
    builder.set_spout("sentences", ObservedSpout(f"bench-{kind}", fields="body string"))
    config = {"port": int(os.environ[PORT])}
    builder.set_bolt("count", bolt, config=config).shuffle_grouping("sentences")
    return builder.build()


@dataclass(frozen=True, kw_only=True)
class Called:
    """Messages that each called the web server once."""

    kind: str
    messages: int
    wall_s: float

    @property
    def per_s(self) -> float:
        return self.messages / self.wall_s

    def line(self) -> str:
        """Format the figures as a line."""
        return f"{self.kind}: {self.messages:,} in {self.wall_s:.1f} s, {self.per_s:,.0f}/s"


def measure(settings: Settings, kind: str, messages: int) -> Called:
    """Drain a queue of this many messages."""
    with running(kind, settings, module="bench.calls") as topology:
        seconds_to_drain(topology, repeat(b"", _WARM_UP[kind]), _WITHIN_S)
        wall_s = seconds_to_drain(topology, repeat(b"", messages), _WITHIN_S)
    return Called(kind=kind, messages=messages, wall_s=wall_s)


@contextmanager
def web_server() -> Iterator[int]:
    """Run the web server in a separate process; yields its port."""
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this script
        if process.stdout is None:
            raise RuntimeError("the web server has no standard output")
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def serve() -> None:
    """Print the port, then answer each request after ``ANSWER_S`` until the process ends."""

    async def answer(_request: web.Request) -> web.Response:
        await asyncio.sleep(ANSWER_S)
        return web.Response()

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Measure both topologies and print the ratio."""
    parser = argparse.ArgumentParser(description="Messages per second through calls that wait.")
    parser.add_argument("--messages", type=int, default=40_000, help="many at once")
    parser.add_argument("--alone", type=int, default=300, help="one after the other")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve())
        return
    with web_server() as port, environment({PORT: str(port)}), servers() as settings:
        alone = measure(settings, "waits", given.alone)
        print(alone.line(), flush=True)
        together = measure(settings, "calls", given.messages)
        print(together.line(), flush=True)
    ratio = together.per_s / alone.per_s
    print(f"ratio: {ratio:.0f}")
    figures = {
        "waits_per_s": round(alone.per_s, 1),
        "calls_per_s": round(together.per_s),
        "calls_ratio": round(ratio),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""Events to the web servers of partners, hundreds at once: ``tiercel run
tiercel.examples.webhooks:topology``.

    echo '{"partner": "mews", "event": "the falcon is back"}' | tiercel publish events -

Each event is posted to ``http://127.0.0.1:8311/mews``, at most 20 per second and partner. A partner
that answers 429 or 503 gets the event again after its ``Retry-After``, any number of times, and
none counts as a failure; meanwhile the event waits at the broker. If the partner cannot be reached
or has an error of its own (5xx), the task posts the event again up to three times, within seconds.
Any other answer except success fails the event, which becomes a dead letter at the delivery limit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tenacity import wait_random_exponential

from tiercel import (
    AsyncBolt,
    AsyncCollector,
    QueueSpout,
    Retry,
    RetryLater,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

PORT = 8311
_BUSY = frozenset({429, 503})
_PATIENCE_S = 5.0


class DeliveryError(Exception):
    """The partner did not accept the event."""


class PartnerError(DeliveryError):
    """The partner's server has failed: the next call may succeed."""


class Deliver(AsyncBolt):
    """Posts each tuple; other tuples do not wait for its answer."""

    concurrency = 200
    retry = Retry(attempts=4, wait=wait_random_exponential(max=5), on=(PartnerError, OSError))

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - each task is alike
        self.host = config["host"]
        self.port = config["port"]

    async def execute(self, tup: Tuple, collector: AsyncCollector) -> None:  # noqa: ARG002 - nothing to emit
        body = json.dumps({"event": tup["event"]}).encode()
        async with asyncio.timeout(10):
            status, headers = await self.post(f"/{quote(tup['partner'], safe='')}", body)
        if status in _BUSY:
            seconds = headers.get("retry-after", "")
            raise RetryLater(
                float(seconds) if seconds.isdecimal() else _PATIENCE_S,
                f"{tup['partner']} answers {status}",
                blame=False,
            )
        if status >= 500:
            raise PartnerError(f"{tup['partner']} answers {status}")
        if not 200 <= status < 300:
            raise DeliveryError(f"{tup['partner']} answers {status}")

    async def post(self, path: str, body: bytes) -> tuple[int, dict[str, str]]:
        """Return status and headers of the answer; a client such as aiohttp reuses connections."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        finally:
            writer.close()
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        return int(head[0].split(" ")[1]), headers


def topology() -> Topology:
    builder = TopologyBuilder("webhooks")
    builder.set_spout("events", QueueSpout("events", fields="partner string, event string"))
    config = {
        "host": "127.0.0.1",
        "port": PORT,
        "rate_limit": "20/s",
        "rate_limit_by": "partner",
    }
    builder.set_bolt("deliver", Deliver(), config=config).shuffle_grouping("events")
    return builder.build()

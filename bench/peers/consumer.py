"""One process, one pika ``SelectConnection``, one channel, and the prefetch of tiercel's spout.

Each message is acked by itself.

    python -m bench.peers.consumer bare|inline QUEUE      AMQP and Redis as TIERCEL_AMQP
                                                          and TIERCEL_REDIS

``bare`` only acks each message, which is the most that a Python consumer of this queue can do.
``inline`` splits the sentence and counts its words in Redis in one pipeline before the ack.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import redis
from pika import SelectConnection, URLParameters

from bench.probe import start_probe
from tiercel.queues.limits import PREFETCH

Work = Callable[[bytes], None]


def inline() -> Work:
    """Split a sentence and count its words, in one round trip per message."""
    client = redis.Redis.from_url(os.environ["TIERCEL_REDIS"])

    def work(body: bytes) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for word in body.decode().split():
                pipeline.hincrby("bench-counts", word, 1)
            pipeline.execute()

    return work


def consume(amqp_url: str, queue: str, work: Work | None) -> None:
    """Consume until SIGTERM."""

    def delivered(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        if work is not None:
            work(body)
        channel.basic_ack(method.delivery_tag)

    def channel_open(channel: Any) -> None:
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(queue, delivered)

    connection = SelectConnection(
        URLParameters(amqp_url),
        on_open_callback=lambda opened: opened.channel(on_open_callback=channel_open),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    connection.ioloop.start()


if __name__ == "__main__":
    start_probe()
    consume(os.environ["TIERCEL_AMQP"], sys.argv[2], inline() if sys.argv[1] == "inline" else None)

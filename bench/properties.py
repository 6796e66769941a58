"""The cost of message properties: sentences per second of a spout that names some, and of one that
names none.

    python bench/properties.py [--sentences N] [--rounds N]

The messages are the same for both, each with an id, a timestamp and three headers. Both topologies
are warmed up, run at the same time and take turns, so that they meet the same conditions. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.rig import running, servers
from bench.throughput import drain
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.message.writing import OutgoingMessage, write_properties
from tiercel.queues.publishing.publisher import Publisher
from tiercel.workers.config import Settings

KINDS = ("unnamed", "named")


def fill_whole(settings: Settings, queue: str, bodies: Iterator[bytes]) -> int:
    """Publish messages with properties; return their number."""

    def messages() -> Iterator[OutgoingMessage]:
        for number, body in enumerate(bodies):
            properties = write_properties(
                {
                    "message_id": uuid.uuid4().hex,
                    "timestamp": int(time.time()),
                    "headers": {
                        "tenant": f"t{number % 10}",
                        "trace": uuid.uuid4().hex,
                        "attempt": 1,
                    },
                }
            )
            yield OutgoingMessage(body=body, routing_key=queue, properties=properties)

    declare_queue(settings.amqp or "", WorkQueue(name=queue))
    with Publisher(settings.amqp or "") as publisher:
        return publisher.publish_all(messages())


def main() -> None:
    parser = argparse.ArgumentParser(description="The price of a message's properties.")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as exits:
        settings = exits.enter_context(servers())
        topologies = {kind: exits.enter_context(running(kind, settings)) for kind in KINDS}
        for topology in topologies.values():
            topology.warm_up()
        for _ in range(arguments.rounds):
            for kind, topology in topologies.items():
                drained = drain(topology, kind, arguments.sentences, fill_whole)
                print(drained.line(), flush=True)
                found[kind].append(drained.whole_per_s)
    unnamed, named = (statistics.median(found[kind]) for kind in KINDS)
    print(json.dumps({"unnamed_per_s": unnamed, "named_per_s": named, "ratio": named / unnamed}))


if __name__ == "__main__":
    main()

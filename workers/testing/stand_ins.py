"""Stand-ins for what a topology needs a broker for, so that a test runs it as it is.

A ``QueueSpout`` is fed bodies, which its own decoder reads; a ``QueueSink`` makes its messages, and
shows them to the test.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiercel.queues.broker.frames import read_properties
from tiercel.queues.message.outgoing import OutgoingMessage
from tiercel.queues.queue_spout import QueueSpout, refusal_of
from tiercel.queues.schema import Schema
from tiercel.queues.spout import MsgId, SpoutCollector
from tiercel.spark_jobs.bolts.bolt import Bolt
from tiercel.spark_jobs.bolts.collecting import OutputCollector
from tiercel.spark_jobs.bolts.context import TopologyContext
from tiercel.spark_jobs.bolts.queue_sink import QueueSink
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.feeder import Fed, FeederSpout

# The stream on which a captured sink says what it would have published.
PUBLISHED = "__published"
_MESSAGE = Schema.parse("exchange string, routing_key string, properties binary, body binary")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedMessage(OutgoingMessage):
    """A message that a ``QueueSink`` would have published: ``body``, ``exchange`` (empty for a
    queue), ``routing_key``, and ``properties`` as pika has them (``properties.headers``).
    """

    def json(self) -> Any:
        """Return the value of a JSON body. Raises ValueError."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedBody:
    """A body that a ``QueueSpout`` would have dead-lettered, and why."""

    body: bytes
    reason: str


class BodyFeeder(FeederSpout):
    """In the place of a ``QueueSpout``: emits what its decoder makes of the bodies that it is fed.

    It replays nothing but what a bolt wants later (``RetryLater``).
    """

    def __init__(self, spout: QueueSpout) -> None:
        super().__init__(
            spout.body_fields,
            properties=spout.properties.columns,
            streams=spout.output_streams,
            direct_streams=spout.direct_streams,
        )
        self._decode = spout.decoder()
        # Each with its message id, and the values of its properties.
        self._bodies: deque[tuple[int, bytes, list[Any]]] = deque()
        # By message id: they count from 1.
        self._fed_bodies: dict[int, bytes] = {}
        self.refused: list[RefusedBody] = []

    def feed_body(self, body: bytes, properties: Mapping[str, Any]) -> int:
        """Emit its values at the next ``run_until_idle``; returns the message id.

        Raises SchemaError for a property that has no column here.
        """
        values = self._properties.values(properties)
        msg_id = len(self._fed_bodies) + 1
        self._fed_bodies[msg_id] = body
        self._bodies.append((msg_id, body, values))
        return msg_id

    def next_tuple(self, collector: SpoutCollector) -> None:
        super().next_tuple(collector)
        while self._bodies:
            msg_id, body, properties = self._bodies.popleft()
            try:
                values = [*self._decode(body), *properties]
                self._emit(collector, Fed(values, msg_id, DEFAULT_STREAM, None))
            except Exception as error:  # noqa: BLE001 - as the spout does it: a message harms itself alone
                self._take(msg_id)
                reason = refusal_of(error)
                self.refused.append(RefusedBody(body=body, reason=reason))
                collector.report_error(f"message dead-lettered: {reason}")
            else:
                return

    def reject(self, msg_id: MsgId, reason: str) -> None:
        self._take(msg_id)
        body = self._fed_bodies.get(msg_id) if isinstance(msg_id, int) else None
        if body is not None:
            self.refused.append(RefusedBody(body=body, reason=f"rejected: {reason}"))


class CapturedSink(Bolt):
    """In the place of a ``QueueSink``: makes its messages, and publishes none."""

    def __init__(self, sink: QueueSink) -> None:
        self._sink = sink

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """The sink itself would connect here."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self._sink.execute(tup, collector)

    def flush(self, collector: OutputCollector) -> None:
        for tup, message in self._sink.take_held():
            properties = b"".join(message.properties.encode())
            # In no tree: what is published is not taken back where another part of it fails.
            collector.emit(
                [message.exchange, message.routing_key, properties, message.body], stream=PUBLISHED
            )
            collector.ack(tup)


def with_stand_ins(topology: Topology) -> Topology:
    """Return the topology with stand-ins for its queue spouts and queue sinks."""
    spouts = {
        component: replace(spec, spout=BodyFeeder(spec.spout))
        if isinstance(spec.spout, QueueSpout)
        else spec
        for component, spec in topology.spouts.items()
    }
    bolts = {
        component: replace(
            spec, bolt=CapturedSink(spec.bolt), streams={**spec.streams, PUBLISHED: _MESSAGE}
        )
        if isinstance(spec.bolt, QueueSink)
        else spec
        for component, spec in topology.bolts.items()
    }
    return replace(topology, spouts=spouts, bolts=bolts)


def published_message(values: Sequence[Any]) -> PublishedMessage:
    """Return what a captured sink emitted as a message."""
    exchange, routing_key, properties, body = values
    return PublishedMessage(
        body=body,
        exchange=exchange,
        routing_key=routing_key,
        properties=read_properties(properties),
    )


def places_of(topology: Topology) -> Sequence[tuple[Any, Any]]:
    """Return the queue and the exchange of each sink of a topology: a name, a ``field``, or None
    for the one that it has not.
    """
    return [
        (spec.bolt.queue, spec.bolt.exchange)
        for spec in topology.bolts.values()
        if isinstance(spec.bolt, QueueSink)
    ]

"""The spans of one spout task: from the delivery of a message to its settling.

Made only if this process records traces; else the task has a plain ``OutcomeTeller``, and its
collector asks nothing. All of it runs on the spout's thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.message.properties import near_text
from tiercel.queues.queue_spout import QueueSpout
from tiercel.queues.spout import MsgId
from tiercel.spark_jobs.tracing.spans import SpanContext, Tracing, parent_in
from tiercel.workers.spout.trees import OutcomeTeller

if TYPE_CHECKING:  # an extra
    from opentelemetry.trace import Span


class SpoutSpans(OutcomeTeller):
    """``OutcomeTeller`` that also ends the span of each message."""

    def __init__(
        self, tracing: Tracing, teller: OutcomeTeller, component: str, task_id: int
    ) -> None:
        """``teller`` tells the spout."""
        super().__init__(teller.spout)
        spout = teller.spout
        self._teller = teller
        self._tracing = tracing
        self._attributes = {"tiercel.component": component, "tiercel.task": task_id}
        self._name = f"process {component}"
        queue = spout.queue.name if isinstance(spout, QueueSpout) else None
        if queue is not None:
            self._name = f"process {queue}"
            self._attributes |= {
                "messaging.system": "rabbitmq",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": queue,
            }
        # Recorded messages that are not settled.
        self._open: dict[MsgId, Span] = {}

    def begin(self, tuples: Sequence[tuple[int | None, MsgId | None]]) -> dict[int, bytes]:
        """Start the spans of tuples that were emitted, as (root, message id), if they are to be
        recorded; return the context of each, by root.
        """
        tracked = [one for one in tuples if one[0] is not None and one[1] is not None]
        spout = self.spout
        known: Sequence[Delivery | None] = [None] * len(tracked)
        if isinstance(spout, QueueSpout):
            known = spout.deliveries_of([msg_id for _, msg_id in tracked])
        # Nearly all messages of a program without traces have no headers.
        parents = {
            number: parent_in(delivery.properties.headers)
            for number, delivery in enumerate(known)
            if delivery is not None and delivery.properties.headers is not None
        }
        parents = {number: parent for number, parent in parents.items() if parent is not None}
        trace_ids = self._tracing.new_traces(len(tracked))
        begun: dict[int, bytes] = {}
        for number in sorted(trace_ids.keys() | parents.keys()):
            root, msg_id = tracked[number]
            span = self._start(known[number], parents.get(number), trace_ids.get(number, 0))
            if span.is_recording():
                self._end(msg_id)  # emitted twice with one message id
                self._open[msg_id] = span
                begun[cast("int", root)] = self._tracing.context_of(span).packed()
        return begun

    def ack(self, msg_ids: Sequence[MsgId]) -> None:
        self._teller.ack(msg_ids)
        if self._open and not self._open.keys().isdisjoint(msg_ids):
            for msg_id in msg_ids:
                self._end(msg_id)

    def fail(self, msg_id: MsgId, reason: str) -> None:
        self._teller.fail(msg_id, reason)
        self._end(msg_id, reason, "failed")

    def reject(self, msg_id: MsgId, reason: str) -> None:
        self._teller.reject(msg_id, reason)
        self._end(msg_id, reason, "rejected")

    def retry_later(self, msg_id: MsgId, seconds: float, reason: str, *, blame: bool) -> None:
        self._teller.retry_later(msg_id, seconds, reason, blame=blame)
        self._end(msg_id, reason, "retry_later", {"tiercel.seconds": seconds})

    def release(self, msg_id: MsgId) -> None:
        self._teller.release(msg_id)
        if (span := self._open.get(msg_id)) is not None:
            span.add_event("released")
            self._end(msg_id)

    def _start(self, delivery: Delivery | None, parent: SpanContext | None, trace_id: int) -> Span:
        attributes: dict[str, Any] = dict(self._attributes)
        start_ns = None
        if delivery is not None:
            attributes |= _attributes_of(delivery)
            waited_ns = int(1e9 * (time.monotonic() - delivery.arrived_s))
            start_ns = time.time_ns() - waited_ns
        parents = [] if parent is None else [parent]
        return self._tracing.start(
            self._name, "CONSUMER", parents, attributes, trace_id=trace_id, start_ns=start_ns
        )

    def _end(
        self,
        msg_id: MsgId,
        reason: str = "",
        event: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        span = self._open.pop(msg_id, None)
        if span is not None:
            if event:
                self._tracing.fail(span, reason, event, **(attributes or {}))
            span.end()


def _attributes_of(delivery: Delivery) -> dict[str, Any]:
    """Return the attributes of one message, by OpenTelemetry's conventions."""
    attributes: dict[str, Any] = {
        "messaging.rabbitmq.message.delivery_tag": delivery.tag,
        "messaging.rabbitmq.destination.routing_key": near_text(delivery.routing_key),
        "messaging.message.body.size": len(delivery.body),
    }
    if delivery.properties.message_id:
        attributes["messaging.message.id"] = near_text(delivery.properties.message_id)
    if delivery.properties.correlation_id:
        attributes["messaging.message.conversation_id"] = near_text(
            delivery.properties.correlation_id
        )
    if delivery.delivery_count:
        attributes["tiercel.delivery_count"] = delivery.delivery_count
    return attributes

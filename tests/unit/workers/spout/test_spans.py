"""The span of a message, from delivery to settlement."""

from __future__ import annotations

import time

import pika
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from tests.support.traces import recorded
from tiercel import QueueSpout
from tiercel.queues.broker.frames import Headers
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.queue_spout import MessageId
from tiercel.spark_jobs.tracing import process
from tiercel.spark_jobs.tracing.spans import SpanContext
from tiercel.workers.spout.spans import SpoutSpans
from tiercel.workers.spout.trees import OutcomeTeller

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
ONE = MessageId(1, 1, 1)


class Settled(QueueSpout):
    """Records its calls, and has one open message."""

    def __init__(self, **headers):
        super().__init__("orders")
        self.told = []
        self._delivery = Delivery(
            epoch=1,
            tag=1,
            body=b"12345",
            delivery_count=2,
            properties=pika.BasicProperties(
                headers=Headers.of(headers) if headers else None, message_id="m1"
            ),
            arrived_s=time.monotonic() - 3,
            exchange="events",
            routing_key="order.new",
        )

    def deliveries_of(self, msg_ids):
        return [self._delivery if msg_id == ONE else None for msg_id in msg_ids]

    def ack_all(self, msg_ids):
        self.told += [("ack", msg_id) for msg_id in msg_ids]

    def fail(self, msg_id, reason=""):
        self.told.append(("fail", msg_id))

    def reject(self, msg_id, reason):
        self.told.append(("reject", msg_id))

    def retry_later(self, msg_id, seconds, reason, *, blame):
        self.told.append(("later", msg_id))

    def release(self, msg_id):
        self.told.append(("release", msg_id))


def spans_of(spout):
    known = process.of_this_process()
    assert known is not None
    return SpoutSpans(known, OutcomeTeller(spout), "in", 1)


def test_the_span_begins_with_the_delivery_below_the_publisher_and_names_the_message():
    spout = Settled(traceparent=PARENT, tracestate="a=b")
    with recorded() as found:
        teller = spans_of(spout)
        begun = teller.begin([(17, ONE), (None, None)])
        assert not found.spans
        teller.ack([ONE])
        [span] = found.spans
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.name == "process orders"
    assert 2.9e9 < span.end_time - span.start_time < 60e9
    assert span.attributes == {
        "tiercel.component": "in",
        "tiercel.task": 1,
        "tiercel.delivery_count": 2,
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.rabbitmq.destination.routing_key": "order.new",
        "messaging.rabbitmq.message.delivery_tag": 1,
        "messaging.message.body.size": 5,
        "messaging.message.id": "m1",
    }
    context = SpanContext.of(begun[17])
    assert (context.span_id, context.state) == (span.context.span_id, "a=b")
    assert spout.told == [("ack", ONE)]


@pytest.mark.parametrize(
    ("tell", "told", "event", "failed"),
    [
        (lambda teller: teller.fail(ONE, "no"), "fail", "failed", True),
        (lambda teller: teller.reject(ONE, "no"), "reject", "rejected", True),
        (
            lambda teller: teller.retry_later(ONE, 5, "no", blame=False),
            "later",
            "retry_later",
            True,
        ),
        (lambda teller: teller.release(ONE), "release", "released", False),
    ],
)
def test_how_a_message_is_settled_is_an_event(tell, told, event, failed):
    spout = Settled()
    with recorded() as found:
        teller = spans_of(spout)
        teller.begin([(17, ONE)])
        tell(teller)
        tell(teller)  # already settled: the span has ended
        [span] = found.spans
    assert [each.name for each in span.events] == [event]
    assert (span.status.status_code is trace.StatusCode.ERROR) is failed
    assert spout.told == 2 * [(told, ONE)]


def test_the_publisher_decides_whether_its_trace_is_recorded():
    with recorded() as found:
        teller = spans_of(Settled(traceparent=PARENT[:-1] + "0"))
        assert teller.begin([(17, ONE)]) == {}
        teller.ack([ONE])
        assert not found.spans
    with recorded(ParentBased(ALWAYS_OFF)) as found:
        teller = spans_of(Settled(traceparent=PARENT))
        assert teller.begin([(17, ONE), (18, MessageId(1, 1, 2))]).keys() == {17}
        teller.ack([ONE])
        assert len(found.spans) == 1


def test_a_message_that_is_emitted_again_has_a_span_for_each_time():
    with recorded() as found:
        teller = spans_of(Settled(traceparent=PARENT))
        first = teller.begin([(17, ONE)])
        teller.release(ONE)
        second = teller.begin([(18, ONE)])
        teller.ack([ONE])
    assert len(found.spans) == 2
    assert first[17] != second[18]
    assert {f"{span.context.trace_id:032x}" for span in found.spans} == {TRACE_ID}

"""Requests come in, and each gets its answer: ``tiercel run tiercel.examples.quotes:topology``.

Any client of RabbitMQ's request-reply pattern can ask: it names its own queue in ``reply_to`` and
an id in ``correlation_id``; the answer arrives in that queue with that id.

    properties = pika.BasicProperties(reply_to=my_queue, correlation_id="1")
    channel.basic_publish("", "quotes", b'{"item": "hood", "pieces": 2}', properties)

A request is acked when the broker has confirmed its answer. If the client's queue is gone, the
answer fails, and the request becomes a dead letter at the delivery limit. A direct reply
(``amq.rabbitmq.reply-to``) goes through no queue: a late one is dropped.
"""

from __future__ import annotations

from decimal import Decimal

from tiercel import (
    BasicBolt,
    BasicCollector,
    QueueSink,
    QueueSpout,
    Topology,
    TopologyBuilder,
    Tuple,
    field,
)

PRICES = {"hood": Decimal("12.50"), "bell": Decimal("3.20"), "jesses": Decimal("8.00")}
# Queues that RabbitMQ has named for clients, which cannot choose such names. Without this check, a
# request could have its answer put into any queue.
OWN_QUEUES = ("amq.gen-", "amq.rabbitmq.reply-to")


class Quote(BasicBolt):
    """Answers each request that names a queue for the answer."""

    output_fields = "reply_to string, correlation_id string, total decimal(12,2), error string"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        reply_to = tup["reply_to"]
        if reply_to is None:
            # No client waits for an answer.
            return
        if not reply_to.startswith(OWN_QUEUES):
            raise ValueError(f"{reply_to!r:.50} is no queue of a client's own")
        price = PRICES.get(tup["item"])
        pieces = tup["pieces"]
        if price is None or pieces is None or pieces < 1:
            # Only the client can fix this: a retry would not help.
            collector.emit([reply_to, tup["correlation_id"], None, "no such item, or no pieces"])
            return
        collector.emit([reply_to, tup["correlation_id"], pieces * price, None])


def topology() -> Topology:
    builder = TopologyBuilder("quotes")
    requests = QueueSpout(
        "quotes",
        fields="item string, pieces int",
        properties=["reply_to", "correlation_id"],
        delivery_limit=2,
    )
    replies = QueueSink(
        field("reply_to"),
        correlation_id=field("correlation_id"),
        content_type="application/json",
        # The client's queue exists, and answers need not survive the broker.
        declare=False,
        persistent=False,
    )
    builder.set_spout("requests", requests)
    builder.set_bolt("quote", Quote(), parallelism=2).shuffle_grouping("requests")
    builder.set_bolt("replies", replies).shuffle_grouping("quote")
    return builder.build()

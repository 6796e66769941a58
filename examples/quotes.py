"""Requests come in, and each gets its answer: ``tiercel run tiercel.examples.quotes:topology``.

Any client that does RabbitMQ's request and reply can ask: it names a queue of its own in
``reply_to`` and the request in ``correlation_id``; the answer comes to that queue, with that id.

    properties = pika.BasicProperties(reply_to=my_queue, correlation_id="1")
    channel.basic_publish("", "quotes", b'{"item": "hood", "pieces": 2}', properties)

A request is acked when the broker has its answer. An answer that no queue takes any more, because
its client is gone, fails; after the delivery limit its request is a dead letter. A direct reply
(``amq.rabbitmq.reply-to``) goes through no queue: one that comes too late is dropped.
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
# A client's own queues: RabbitMQ gives these names, and no client can choose one. Without this
# check, a request could have its answer put into any queue there is.
OWN_QUEUES = ("amq.gen-", "amq.rabbitmq.reply-to")


class Quote(BasicBolt):
    """Answers each request that says where to."""

    output_fields = "reply_to string, correlation_id string, total decimal(12,2), error string"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        reply_to = tup["reply_to"]
        if reply_to is None:
            # There is no client to answer.
            return
        if not reply_to.startswith(OWN_QUEUES):
            raise ValueError(f"{reply_to!r:.50} is no queue of a client's own")
        price = PRICES.get(tup["item"])
        pieces = tup["pieces"]
        if price is None or pieces is None or pieces < 1:
            # For the client to mend: trying again would not help.
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
        # A client's queue is there, and its answers need not outlive the broker.
        declare=False,
        persistent=False,
    )
    builder.set_spout("requests", requests)
    builder.set_bolt("quote", Quote(), parallelism=2).shuffle_grouping("requests")
    builder.set_bolt("replies", replies).shuffle_grouping("quote")
    return builder.build()

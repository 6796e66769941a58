"""Orders joined with their payments: ``tiercel run tiercel.examples.paid_orders:topology``.

    echo '{"order": "o-17", "cents": 1250, "at": "2026-03-01T12:00:00Z"}' | tiercel publish orders -
    echo '{"payment": "p-4", "order": "o-17", "cents": 1250, "at": "2026-03-01T12:03:00Z"}' |
        tiercel publish payments -

An order and a payment of it that are less than ten minutes apart become one message of the queue
``paid``, whichever came first. One without a partner becomes a message of the queue ``alone``.
Both leave their own queue when this message is confirmed, and not before.
"""

from __future__ import annotations

from datetime import timedelta

from tiercel import (
    QueueSink,
    QueueSpout,
    Session,
    Topology,
    TopologyBuilder,
    TupleWindow,
    WindowCollector,
    WindowedBolt,
)

WITHIN = timedelta(minutes=10)


class Match(WindowedBolt):
    """Waits, per order, until no partner can come any more."""

    # An order and its payment are in one session: two gaps long at most.
    window = Session(WITHIN, longest=2 * WITHIN)
    timestamp_field = "at"
    # The queues are not read in step: one of them may be ahead by this.
    lag = timedelta(minutes=1)
    output_streams = {  # noqa: RUF012 - it is the contract
        "default": "order string, ordered long, paid long, payment string",
        "alone": "side string, order string, cents long",
    }

    def execute(self, window: TupleWindow, collector: WindowCollector) -> None:
        orders = [tup for tup in window if tup.source_component == "orders"]
        payments = [tup for tup in window if tup.source_component == "payments"]
        for order in orders:
            for payment in payments:
                paid = [window.key, order["cents"], payment["cents"], payment["payment"]]
                collector.emit(paid, anchors=[order, payment])
        if not (orders and payments):
            for tup in window:
                alone = [tup.source_component, window.key, tup["cents"]]
                collector.emit(alone, "alone", anchors=tup)


def topology() -> Topology:
    builder = TopologyBuilder("paid-orders")
    # A message that is delivered again takes the place of its earlier copy.
    builder.set_spout(
        "orders",
        QueueSpout("orders", fields="order string, cents long, at timestamp", identity="body"),
    )
    builder.set_spout(
        "payments",
        QueueSpout(
            "payments",
            fields="payment string, order string, cents long, at timestamp",
            identity="body",
        ),
    )
    match = builder.set_bolt("match", Match(), parallelism=2)
    match.fields_grouping("orders", "order").fields_grouping("payments", "order")
    builder.set_bolt("paid", QueueSink("paid")).shuffle_grouping("match")
    builder.set_bolt("alone", QueueSink("alone")).shuffle_grouping("match", stream="alone")
    return builder.build()

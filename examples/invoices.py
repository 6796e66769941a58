"""Orders come in, invoices go out: ``tiercel run tiercel.examples.invoices:topology``.

    echo '{"order": 1, "item": "hood", "pieces": 2, "price": "12.50"}' | tiercel publish orders -

An order leaves its queue when the broker has confirmed its invoice. An order that cannot be billed
is retried, and becomes a dead letter with the reason at the delivery limit: ``tiercel dead-letters
show orders``.
"""

from __future__ import annotations

from tiercel import (
    BasicBolt,
    BasicCollector,
    QueueSink,
    QueueSpout,
    Topology,
    TopologyBuilder,
    Tuple,
)


class Bill(BasicBolt):
    """Makes one invoice per order."""

    output_fields = "order long, text string, amount decimal(12,2)"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        if tup["pieces"] <= 0:
            raise ValueError(f"order {tup['order']} is for {tup['pieces']} pieces")
        collector.emit(
            [tup["order"], f"{tup['pieces']} x {tup['item']}", tup["pieces"] * tup["price"]]
        )


def topology() -> Topology:
    builder = TopologyBuilder("invoices")
    builder.set_spout(
        "orders",
        QueueSpout("orders", fields="order long, item string, pieces int, price decimal(10,2)"),
    )
    builder.set_bolt("bill", Bill(), parallelism=2).shuffle_grouping("orders")
    builder.set_bolt("invoices", QueueSink("invoices")).shuffle_grouping("bill")
    return builder.build()

"""Orders from RabbitMQ into PostgreSQL, each booked once: ``tiercel run
tiercel.examples.orders:topology``.

    CREATE TABLE bookings (
        order_id text PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL,
        balance bigint NOT NULL
    );

    echo '{"order_id": "o-17", "customer": "anna", "cents": 1250}' |
        tiercel publish orders - --message-id-from order_id

An order is identified by its message id. However often its message is delivered, because a process,
a server or a connection died, or because it was requeued from the dead letters, its customer's
balance changes once, and it has one row with the balance at that time.
"""

from __future__ import annotations

from tiercel import (
    BasicCollector,
    DatabaseSink,
    QueueSpout,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    Tuple,
)

# libpq reads the address from PGHOST, PGUSER and so on.
URL = "postgresql://"


class Book(StatefulBolt):
    """Keeps the balance of each customer."""

    output_fields = "order_id string, customer string, cents long, balance long"
    once = True

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        if tup["cents"] <= 0:
            raise ValueError(f"order {tup['order_id']} is for {tup['cents']} cents")
        balance = self.state.increment(tup["customer"], tup["cents"])
        collector.emit([tup["order_id"], tup["customer"], tup["cents"], balance])


def topology(url: str = URL, parallelism: int = 2) -> Topology:
    """``url`` is the address of the database."""
    builder = TopologyBuilder("orders")
    builder.set_spout(
        "orders",
        QueueSpout(
            "orders",
            fields="order_id string, customer string, cents long",
            identity="message_id",
        ),
    )
    builder.set_bolt("book", Book(), parallelism).fields_grouping("orders", "customer")
    builder.set_bolt("bookings", DatabaseSink(url, "bookings"), parallelism).shuffle_grouping(
        "book"
    )
    return builder.build()

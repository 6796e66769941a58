"""An HTTP call that takes effect once: ``tiercel run tiercel.examples.payments:topology``.

    echo '{"payment": "p-17", "account": "anna", "cents": 1250}' |
        tiercel publish payments - --message-id-from payment

A service outside tiercel's transactions must recognise repeated calls itself. Many services, like
Stripe's, do so by the header ``Idempotency-Key``: calls with the same key take effect once, and get
the same answer. The key of a tuple fits: it is unique, and the same at each delivery of its
message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

from tiercel import (
    BasicBolt,
    BasicCollector,
    QueueSink,
    QueueSpout,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

SERVICE = "http://localhost:18600/payments"
_PATIENCE_S = 10


class Pay(BasicBolt):
    """Makes one call per payment; repeats a failed or unanswered call with the same key."""

    output_fields = "payment string, receipt string"

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - it is the contract
        self.service = config["service"]

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        if tup.key is None:
            raise ValueError("a payment without a message id would be made each time that it comes")
        call = Request(  # noqa: S310 - the operator's service
            self.service,
            data=json.dumps({"account": tup["account"], "cents": tup["cents"]}).encode(),
            headers={"Content-Type": "application/json", "Idempotency-Key": tup.key.hex()},
        )
        with urlopen(call, timeout=_PATIENCE_S) as answer:  # noqa: S310 - as above
            collector.emit([tup["payment"], json.load(answer)["receipt"]])


def topology(service: str = SERVICE) -> Topology:
    """``service`` is the URL of the payment service."""
    builder = TopologyBuilder("payments")
    builder.set_spout(
        "payments",
        QueueSpout(
            "payments",
            fields="payment string, account string, cents long",
            identity="message_id",
        ),
    )
    builder.set_bolt("pay", Pay(), 2, config={"service": service}).shuffle_grouping("payments")
    builder.set_bolt("receipts", QueueSink("receipts")).shuffle_grouping("pay")
    return builder.build()

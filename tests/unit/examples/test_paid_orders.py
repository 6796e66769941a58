"""examples/paid_orders.py: orders and payments, joined by their times whatever came first."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from tiercel.examples.paid_orders import topology
from tiercel.testing import LocalCluster

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def order(number: int, minute: float, cents: int = 100) -> bytes:
    at = NOON + timedelta(minutes=minute)
    return json.dumps({"order": f"o-{number}", "cents": cents, "at": at.isoformat()}).encode()


def payment(number: int, minute: float, cents: int = 100) -> bytes:
    paid = json.loads(order(number, minute, cents))
    return json.dumps({"payment": f"p-{number}", **paid}).encode()


def test_partners_within_ten_minutes_meet_and_others_stay_alone():
    with LocalCluster(topology(), starts_at=NOON + timedelta(hours=1)) as cluster:
        for number, minute in ((1, 0), (2, 1), (3, 2), (4, 9.9)):
            cluster.feed_body(order(number, minute), "orders")
        # One before its order, one too late for it, one for no order.
        for number, minute in ((1, 3), (2, 0), (3, 12), (5, 4)):
            cluster.feed_body(payment(number, minute), "payments")
        cluster.run_until_idle()
        assert cluster.acked("orders") == []
        cluster.advance_time(3600)
        assert sorted(row[0] for row in cluster.read_tuples("match")) == ["o-1", "o-2"]
        assert sorted(cluster.read_tuples("match", "alone")) == [
            ["orders", "o-3", 100],
            ["orders", "o-4", 100],
            ["payments", "o-3", 100],
            ["payments", "o-5", 100],
        ]
        paid = [each.json() for each in cluster.published("paid")]
        assert {"order": "o-2", "ordered": 100, "paid": 100, "payment": "p-2"} in paid
        assert len(cluster.published("alone")) == 4
        assert (len(cluster.acked("orders")), len(cluster.acked("payments"))) == (4, 4)

"""A failure and a ``RetryLater`` appear in the log, ``tiercel errors``, ``status`` and ``top``:
each once, with its message.
"""

import json

import pytest

from tests.support.runs import Desk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

SHOP = """
from tiercel import BasicBolt, Config, QueueSpout, RetryLater, TopologyBuilder
from tiercel.queues.retry import NO_WAIT


class Price(BasicBolt):
    def execute(self, tup, collector):
        if tup["kind"] == "later":
            raise RetryLater(60, "the API is busy", blame=False)
        if tup["kind"] == "bad":
            raise ValueError("no price")


def topology():
    builder = TopologyBuilder("shop", Config(shutdown_grace_secs=60))
    spout = QueueSpout("orders", "id string, kind string", delivery_limit=1, retry=NO_WAIT)
    builder.set_spout("orders", spout)
    builder.set_bolt("price", Price()).shuffle_grouping("orders")
    return builder.build()
"""
ORDERS = [("o-1", "good"), ("o-2", "later"), ("o-3", "bad"), ("o-4", "good")]


def test_a_failure_is_seen_once_everywhere_and_names_its_message(tmp_path):
    desk = Desk(tmp_path)
    desk.write("shop.py", SHOP)
    lines = [json.dumps({"id": name, "kind": kind}) for name, kind in ORDERS]
    desk.write("orders.jsonl", "\n".join(lines) + "\n")
    with desk.run("shop:topology") as process:
        desk.tiercel("publish", "orders", "orders.jsonl", "--message-id-from", "id")
        wait_until(lambda: len(desk.events("message_failed")) == 2, 60, "o-3 to fail twice")
        wait_until(lambda: desk.events("message_retried_later"), 60, "o-2 to be postponed")
        for record in desk.events("message_failed"):
            assert (record["message_id"], record["queue"]) == ("o-3", "orders")
            assert (record["bolt"], record["level"]) == ("price", "info")
            assert isinstance(record["task"], int)
            assert "ValueError: no price" in record["reason"]
            assert record["message"].startswith("message o-3 of queue orders failed: price[")
        [later] = desk.events("message_retried_later")
        assert (later["message_id"], later["bolt"]) == ("o-2", "price")
        assert later["message"].endswith("RetryLater: again after 60 s: the API is busy")

        wide = Desk(tmp_path, {"COLUMNS": "200"})
        errors = wait_until(
            lambda: (
                (said := wide.tiercel("errors", "--run", "shop")).stdout.count("o-3") == 2 and said
            ),
            30,
            "both failures",
        )
        rows = [line.split("│") for line in errors.stdout.splitlines() if line.startswith("│")]
        assert len(rows) == 3, errors.stdout
        assert {row[2].strip() for row in rows} == {"price"}
        assert sum("message o-2 of queue orders" in row[-2] for row in rows) == 1
        assert "on the private servers of the run of shop" in errors.stderr

        said = json.loads(wide.tiercel("status", "shop", "--json", code=1).stdout)
        reasons = {each["kind"]: each["reason"] for each in said["findings"]}
        assert set(reasons) == {"failing", "retry_later", "dead_letters"}
        assert "last: ValueError: no price (shop.py:" in reasons["failing"]
        assert "last: RetryLater: again after 60 s: the API is busy" in reasons["retry_later"]
        top = wide.tiercel("top", "shop").stdout
        assert "strained" in top.splitlines()[0]
        assert "RetryLater: again after 60 s: the API is busy" in top
        process.terminate()
        assert process.wait(120) == 0

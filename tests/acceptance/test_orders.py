"""Orders are booked once in PostgreSQL, while everything that can die does."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import defaultdict
from contextlib import suppress
from itertools import accumulate

import psycopg
import pytest

from tests.support.children import kill, python_workers
from tests.support.postgres import libpq
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.examples import orders
from tiercel.queues.message.writing import OutgoingMessage, write_properties
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import ledger_spec_of

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

ORDERS = 4_000
# Messages published together, and the pause after them.
TOGETHER = 50
PAUSE_S = 0.25
TABLE = (
    "CREATE TABLE bookings (order_id text, customer text NOT NULL, cents bigint NOT NULL, "
    "balance bigint NOT NULL)"
)


def message_of(number: int) -> OutgoingMessage:
    order = {"order_id": f"o-{number}", "customer": f"c-{number % 17}", "cents": number % 97 + 1}
    return OutgoingMessage(
        body=json.dumps(order).encode(),
        routing_key="orders",
        properties=write_properties({"message_id": order["order_id"]}),
    )


def booked(url: str) -> int:
    """Count the rows; -1 while the database is away."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            found = connection.execute("SELECT count(*) FROM bookings").fetchone()
    except psycopg.OperationalError:
        return -1
    return found[0] if found else 0


def publish(amqp_url: str) -> None:
    """Publish all orders; some publishers are unsure, and publish again."""
    with Publisher(amqp_url) as publisher:
        for start in range(0, ORDERS, TOGETHER):
            numbers = [*range(start, start + TOGETHER), *range(0, start, 1 + start // 5)]
            for message in map(message_of, numbers):
                while publisher.publish_each([message]) != [None]:
                    continue
            threading.Event().wait(PAUSE_S)


def faults(run, database):
    """Kill all that can die, one after the other; the last kills take longest."""
    return [
        lambda: database.kill() or database.start(),
        lambda: kill_workers(run, 1),
        lambda: kill(run.run.spout("orders", 0), signal.SIGKILL),
        lambda: database.restart(keep_data=True),
        lambda: run.redis.restart(keep_data=True),
        lambda: kill_workers(run, 10),
        lambda: kill(run.run.driver, signal.SIGKILL),
        lambda: run.rabbitmq.restart(keep_data=True),
    ]


def test_each_order_is_booked_once_whatever_dies_and_however_often_it_comes(
    postgres, tmp_path, monkeypatch
):
    database = postgres()
    for name, value in libpq(database.url).items():
        monkeypatch.setenv(name, value)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(TABLE)  # without a primary key: only tiercel's keys prevent duplicates
    with running(
        "tiercel.examples.orders:topology", tmp_path, "TIERCEL_TEST_ORDERS", queues=("orders",)
    ) as run:
        wait_until(lambda: run.run.driver.pid is not None, 60, "the driver to start")
        publishing = threading.Thread(target=publish, args=[run.amqp_url])
        publishing.start()
        wait_until(lambda: booked(database.url) > 0, 300, "the first bookings")
        for fault in faults(run, database):
            fault()
            publishing.join(timeout=3)
        publishing.join()
        wait_until(lambda: booked(database.url) >= ORDERS, 300, "all orders to be booked")
        wait_until(lambda: not waiting(run), 300, "the queue to be empty")
        state = state_of(run)
        assert counted(run, "once_repeated") > 0
    with psycopg.connect(database.url) as connection:
        rows = connection.execute("SELECT order_id, customer, cents, balance FROM bookings")
        check(rows.fetchall(), state)


def check(rows: list, state: dict) -> None:
    """Check that each order has one row, and that each customer's balances follow one another."""
    assert len(rows) == ORDERS, f"{len(rows) - ORDERS} double or missing"
    assert {row[0] for row in rows} == {f"o-{number}" for number in range(ORDERS)}
    by_customer = defaultdict(list)
    for _, customer, cents, balance in sorted(rows, key=lambda row: row[3]):
        by_customer[customer].append((cents, balance))
    assert state == {name: sum(cents for cents, _ in found) for name, found in by_customer.items()}
    for found in by_customer.values():
        assert [balance for _, balance in found] == list(accumulate(cents for cents, _ in found))


def state_of(run) -> dict:
    store = RedisStateStore(ledger_spec_of(orders.topology(), (run.redis_url,)), run_number=0)
    found = {decode_key(key): decode_value(raw) for key, raw in store.entries("book")}
    store.close()
    return found


def counted(run, counter: str) -> int:
    tasks = RedisMetrics(run.redis_url, "orders").totals()["book"].values()
    return sum(task.get(counter, 0) for task in tasks)


def kill_workers(run, most: int) -> None:
    driver = run.run.driver.pid
    for pid in python_workers(driver)[:most] if driver else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def waiting(run) -> int:
    [depth] = run.depths("orders")
    return (depth.ready or 0) + (depth.unacked or 0)

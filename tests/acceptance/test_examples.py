"""Every module in ``examples/`` runs with its user's command, and does what it promises."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from tests.support.broker import plain_channel, take_all
from tests.support.children import python_workers
from tests.support.postgres import libpq
from tests.support.reasons import unplaced
from tests.support.rpc import RpcClient
from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.examples import payments
from tiercel.examples.webhooks import PORT
from tiercel.queues.message.writing import OutgoingMessage, write_properties

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")


class Example:
    """A running example, with its servers and its output."""

    def __init__(self, name: str, services, log: Path, pid: int) -> None:
        self.topology = name.replace("_", "-")
        self.pid = pid
        self.services = services
        self.log = log
        # Variables of its environment, such as the database that it writes into.
        self.around: dict[str, str] = {}

    def printed(self) -> list[str]:
        """Return the lines that are not log records."""
        return [line for line in self.log.read_text().splitlines() if not line.startswith("{")]

    def counted(self, component: str, counter: str) -> int:
        totals = RedisMetrics(self.services.redis_url, self.topology).totals()
        return sum(task.get(counter, 0) for task in totals.get(component, {}).values())

    def publish(self, queue: str, bodies: list[bytes]) -> None:
        declare_queue(self.services.amqp_url, WorkQueue(name=queue))
        with Publisher(self.services.amqp_url) as publisher:
            publisher.publish(queue, bodies)

    def publish_each(self, queue: str, messages: list[OutgoingMessage]) -> None:
        declare_queue(self.services.amqp_url, WorkQueue(name=queue))
        addressed = [replace(message, routing_key=queue) for message in messages]
        with Publisher(self.services.amqp_url) as publisher:
            assert publisher.publish_each(addressed) == [None] * len(messages)


def known_by(message_id: str, **fields: object) -> OutgoingMessage:
    """A message with an id."""
    properties = write_properties({"message_id": message_id})
    return OutgoingMessage(body=json.dumps(fields).encode(), routing_key="", properties=properties)


def postgres_of(example: Example) -> str:
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password"}
    said = {names[name]: value for name, value in example.around.items() if name in names}
    return " ".join(f"{name}={value}" for name, value in {**said, "dbname": "postgres"}.items())


def emptied(services) -> None:
    """Delete all that earlier examples left: several read the same queue, and a second try must not
    count the messages of the first.
    """
    listed = services.rabbitmq.control("--quiet", "list_queues", "--no-table-headers", "name")
    with plain_channel(services.amqp_url) as channel:
        for queue in listed.split():
            channel.queue_delete(queue)
    with closing(redis.Redis.from_url(services.redis_url)) as client:
        client.flushall()


@contextmanager
def running(name: str, services, log: Path, around: dict[str, str]):
    topology = f"examples.{name}:topology"
    master = ("--master", "local[2]")
    servers = {"TIERCEL_AMQP": services.amqp_url, "TIERCEL_REDIS": services.redis_url}
    environment = {
        **os.environ,
        **servers,
        **around,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    emptied(services)
    with tiercel_run(
        topology, *master, folder=log.parent, log=log, environment=environment
    ) as process:
        yield Example(name, services, log, process.pid)
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def words_are_counted(example: Example) -> None:
    example.publish("sentences", [b"the falcon and the tiercel"] * 200)
    wait_until(
        lambda: example.counted("count", "acked") == 1000, 300, "a thousand words to be counted"
    )
    wait_until(
        lambda: example.counted("sentences", "acked") == 200, 30, "their sentences to be acked"
    )


def record_batches_are_counted(example: Example) -> None:
    sentences = [
        f"the falcon {number % 13}  and the tiercel {number % 7}" for number in range(500)
    ] + ["", " "]
    words = Counter(word for sentence in sentences for word in sentence.split())
    counted: Counter[str] = Counter()

    def all_counted() -> bool:
        for body, _ in take_all(example.services.amqp_url, "word-counts"):
            message = json.loads(body)
            counted[message["word"]] += message["n"]
        return counted >= words

    example.publish("sentences", [sentence.encode() for sentence in sentences])
    declare_queue(example.services.amqp_url, WorkQueue(name="word-counts"))
    wait_until(all_counted, 300, "all words to be counted")
    wait_until(
        lambda: example.counted("sentences", "acked") >= 502, 300, "all sentences to be acked"
    )
    # A sentence that timed out on a busy machine was counted again; every word is one of the text.
    assert counted.keys() == words.keys()


def what_failed_comes_again_until_it_is_done(example: Example) -> None:
    def told(what: str, task: int) -> Counter[str]:
        start = f"sentences {task}: {what}: "
        lines = [line.removeprefix(start) for line in example.printed() if line.startswith(start)]
        return Counter(line.partition(" (")[0] for line in lines)

    wait_until(
        lambda: all(told("again", task) and told("done", task).total() > 20 for task in (0, 1)),
        300,
        "replays",
    )
    assert any("(stumble[" in line and "]: stumbled over '" in line for line in example.printed())


def what_was_forgotten_times_out_and_comes_again(example: Example) -> None:
    wait_until(
        lambda: any(line.endswith("(timeout)") for line in example.printed()), 300, "a timeout"
    )
    before = sum(line.startswith("done: ") for line in example.printed())
    wait_until(
        lambda: sum(line.startswith("done: ") for line in example.printed()) > before + 5,
        300,
        "more to be done",
    )
    assert example.counted("sentences", "timeout") >= 1


def each_order_is_billed_and_a_bad_one_is_kept(example: Example) -> None:
    orders = [
        {"order": number, "item": "hood", "pieces": number % 5 + 1, "price": "12.50"}
        for number in range(1_000)
    ]
    bad = {"order": -1, "item": "bell", "pieces": 0, "price": "1.00"}
    example.publish("orders", [json.dumps(order).encode() for order in [*orders, bad]])
    wait_until(
        lambda: example.counted("orders", "acked") == 1_000, 300, "every good order to be acked"
    )
    invoices = {}
    for body, _ in take_all(example.services.amqp_url, "invoices"):
        invoice = json.loads(body)
        invoices[invoice["order"]] = (invoice["text"], invoice["amount"])
    assert invoices == {
        order["order"]: (f"{order['pieces']} x hood", f"{order['pieces'] * 12.5:.2f}")
        for order in orders
    }
    wait_until(lambda: example.counted("orders", "failed") >= 1, 30, "the bad order to fail")

    def reasons() -> set[str]:
        errors = RedisMetrics(example.services.redis_url, "invoices").errors()
        return {unplaced(error.message) for error in errors}

    # A task sends its counters before its errors.
    wait_until(lambda: "ValueError: order -1 is for 0 pieces" in reasons(), 30, "its reason")


def readings_are_stored_and_an_impossible_one_is_kept(example: Example) -> None:
    readings = [{"id": number, "sensor": "mews", "celsius": 19.5} for number in range(2_000)]
    bad = {"id": -1, "sensor": "mews", "celsius": -300.0}
    example.publish("readings", [json.dumps(reading).encode() for reading in [*readings, bad]])
    wait_until(
        lambda: example.counted("readings", "acked") == 2_000, 300, "good readings to be acked"
    )
    with closing(sqlite3.connect(example.log.parent / "readings.db")) as database:
        stored = database.execute("SELECT id FROM readings ORDER BY id").fetchall()
    assert stored == [(number,) for number in range(2_000)]
    wait_until(lambda: example.counted("readings", "failed") >= 1, 30, "the bad one to fail")


def each_line_comes_out_with_its_language(example: Example) -> None:
    lines = [f"{number} falcons are where they were" for number in range(1_000)]
    example.publish("lines", [line.encode() for line in lines])
    wait_until(lambda: example.counted("lines", "acked") == 1_000, 300, "every line to be acked")
    found = {}
    for body, _ in take_all(example.services.amqp_url, "languages"):
        message = json.loads(body)
        found[message["text"]] = message["language"]
    assert found == dict.fromkeys(lines, "English")


class Partners(BaseHTTPRequestHandler):
    """Takes everything; busy for every fifth event, once."""

    taken: ClassVar[Counter[str]] = Counter()
    asked: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["event"]
        self.asked[event] += 1
        busy = event.endswith("0") and self.asked[event] == 1
        self.taken[event] += not busy
        self.send_response(503 if busy else 204)
        self.send_header("Retry-After", "1")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


def each_event_is_posted_also_to_a_partner_that_was_busy(example: Example) -> None:
    events = [{"partner": f"partner{number % 10}", "event": str(number)} for number in range(500)]
    with ThreadingHTTPServer(("127.0.0.1", PORT), Partners) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        example.publish("events", [json.dumps(event).encode() for event in events])
        wait_until(lambda: len(Partners.taken) == 500, 300, "every event to be taken")
        wait_until(lambda: example.counted("events", "acked") >= 500, 60, "every event's ack")
        server.shutdown()


def each_parcel_has_its_place_and_is_acked_after_that(example: Example) -> None:
    example.publish("parcels", [json.dumps({"parcel": n}).encode() for n in range(300)])
    for acked in (30, 120):
        wait_until(lambda least=acked: example.counted("parcels", "acked") >= least, 300, "acks")
        for pid in python_workers(example.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: example.counted("parcels", "acked") >= 300, 300, "every parcel's ack")
    places = take_all(example.services.amqp_url, "places")
    assert {json.loads(body)["parcel"] for body, _ in places} == set(range(300))


def each_question_gets_its_answer(example: Example) -> None:
    url = example.services.amqp_url
    declare_queue(url, WorkQueue(name="quotes"))
    with RpcClient(url, "quotes") as client, RpcClient(url, "quotes", direct=True) as another:
        assert client.ask(300, item="hood", pieces=2) == {"total": "25.00", "error": None}
        for pieces in range(1, 20):
            for asking in (client, another):
                total = f"{pieces * 3.2:.2f}"
                assert asking.ask(item="bell", pieces=pieces) == {"total": total, "error": None}
        assert client.ask(item="drum", pieces=2)["error"] == "no such item, or no pieces"
    wait_until(lambda: example.counted("requests", "acked") == 40, 30, "all requests to be acked")


def each_order_is_booked_once(example: Example) -> None:
    with psycopg.connect(postgres_of(example), autocommit=True) as database:
        database.execute(
            "CREATE TABLE bookings (order_id text PRIMARY KEY, customer text NOT NULL, "
            "cents bigint NOT NULL, balance bigint NOT NULL)"
        )
        messages = [
            known_by(f"o-{n}", order_id=f"o-{n}", customer="anna", cents=5) for n in range(100)
        ]
        example.publish_each("orders", messages * 2)
        wait_until(lambda: example.counted("orders", "acked") == 200, 300, "both of each order")
        booked = database.execute("SELECT balance FROM bookings ORDER BY balance").fetchall()
    assert booked == [(5 * n,) for n in range(1, 101)]


class Bank(BaseHTTPRequestHandler):
    """Pays once per key, and breaks every third connection when it has paid."""

    paid: ClassVar[dict[str, int]] = {}
    calls = 0

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        receipt = self.paid.setdefault(self.headers["Idempotency-Key"], asked["cents"])
        Bank.calls += 1
        if self.calls % 3 == 0:
            self.connection.close()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"receipt": f"r-{receipt}"}).encode())

    def log_message(self, *_):
        pass


def each_payment_is_made_once(example: Example) -> None:
    where = urlsplit(payments.SERVICE)
    with ThreadingHTTPServer((where.hostname, where.port), Bank) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        example.publish_each(
            "payments",
            [known_by(f"p-{n}", payment=f"p-{n}", account="anna", cents=n) for n in range(60)] * 2,
        )
        wait_until(lambda: example.counted("payments", "acked") == 120, 300, "all payments")
        server.shutdown()
    assert sorted(Bank.paid.values()) == list(range(60))
    assert Bank.calls > 120


def orders_meet_their_payments(example: Example) -> None:
    start = datetime.now(UTC) - timedelta(hours=2)

    def message(number: int, minutes: float, **payment: str) -> tuple[datetime, bytes]:
        at = start + timedelta(seconds=number, minutes=minutes)
        body = {"order": f"o-{number}", "cents": number, "at": at.isoformat(), **payment}
        return at, json.dumps(body).encode()

    # The last ones, which have other keys for all tasks, close the windows of the others.
    last = range(3_600, 3_620)
    orders = [message(number, 0) for number in (*range(300), *last)]
    payments = [message(n, n % 20, payment=f"p-{n}") for n in (*range(0, 330, 3), *last)]
    for queue, messages in (("orders", orders), ("payments", payments)):
        example.publish(queue, [body for _, body in sorted(messages)])
    wait_until(lambda: example.counted("orders", "acked") == 300, 300, "every order's ack")
    wait_until(lambda: example.counted("payments", "acked") == 110, 300, "every payment's ack")
    paid = [json.loads(body) for body, _ in take_all(example.services.amqp_url, "paid")]
    partners = {f"o-{n}" for n in range(0, 300, 3) if n % 20 < 10}
    assert sorted(one["order"] for one in paid) == sorted(partners)
    alone = [json.loads(body) for body, _ in take_all(example.services.amqp_url, "alone")]
    assert sorted(one["order"] for one in alone if one["side"] == "orders") == sorted(
        {f"o-{n}" for n in range(300)} - partners
    )
    assert sorted(one["order"] for one in alone if one["side"] == "payments") == sorted(
        {f"o-{n}" for n in range(0, 330, 3)} - partners
    )


# Condition to wait for, for each example.
RUNS: dict[str, Callable[[Example], None]] = {
    "arrow_word_count": record_batches_are_counted,
    "bulk_insert": readings_are_stored_and_an_impossible_one_is_kept,
    "lookups": each_parcel_has_its_place_and_is_acked_after_that,
    "invoices": each_order_is_billed_and_a_bad_one_is_kept,
    "model": each_line_comes_out_with_its_language,
    "orders": each_order_is_booked_once,
    "paid_orders": orders_meet_their_payments,
    "payments": each_payment_is_made_once,
    "quotes": each_question_gets_its_answer,
    "random_sentences": what_was_forgotten_times_out_and_comes_again,
    "reliable_sentences": what_failed_comes_again_until_it_is_done,
    "webhooks": each_event_is_posted_also_to_a_partner_that_was_busy,
    "word_count": words_are_counted,
}


# Arrow bolts are those of the benchmark too, and reliable_sentences has a spout of its own as well.
MARKS = {
    "word_count": pytest.mark.quick,
    "arrow_word_count": pytest.mark.slow,
    "random_sentences": pytest.mark.slow,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in EXAMPLES],
)
def test_an_example_does_what_it_promises(name, request, services, tmp_path):
    assert name in RUNS, f"add to RUNS what examples/{name}.py does"
    around = libpq(request.getfixturevalue("postgres_url")) if name == "orders" else {}
    with running(name, services, tmp_path / "log", around) as example:
        example.around = around
        RUNS[name](example)


def test_no_run_is_left_of_an_example_that_is_gone():
    assert set(RUNS) <= set(EXAMPLES)

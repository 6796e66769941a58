"""Every module in ``examples/`` runs as its user types it, and does what it promises."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import take_all
from tests.support.rpc import RpcClient
from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.acker.metrics.redis_counters import RedisMetrics

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")


class Example:
    """A running example, with the servers that it runs on and what it has printed."""

    def __init__(self, name: str, services, log: Path) -> None:
        self.topology = name.replace("_", "-")
        self.services = services
        self.log = log

    def printed(self) -> list[str]:
        """The lines that are no log records."""
        return [line for line in self.log.read_text().splitlines() if not line.startswith("{")]

    def counted(self, component: str, counter: str) -> int:
        totals = RedisMetrics(self.services.redis_url, self.topology).totals()
        return sum(task.get(counter, 0) for task in totals.get(component, {}).values())

    def publish(self, queue: str, bodies: list[bytes]) -> None:
        declare_queue(self.services.amqp_url, WorkQueue(name=queue))
        with Publisher(self.services.amqp_url) as publisher:
            publisher.publish(queue, bodies)


@contextmanager
def running(name: str, services, log: Path):
    topology = f"examples.{name}:topology"
    master = ("--master", "local[2]")
    servers = {"TIERCEL_AMQP": services.amqp_url, "TIERCEL_REDIS": services.redis_url}
    environment = {**os.environ, **servers, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with tiercel_run(
        topology, *master, folder=log.parent, log=log, environment=environment
    ) as process:
        yield Example(name, services, log)
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
    reasons = {
        error.message for error in RedisMetrics(example.services.redis_url, "invoices").errors()
    }
    assert "ValueError: order -1 is for 0 pieces" in reasons


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


# Condition to wait for, for each example.
RUNS: dict[str, Callable[[Example], None]] = {
    "arrow_word_count": record_batches_are_counted,
    "invoices": each_order_is_billed_and_a_bad_one_is_kept,
    "quotes": each_question_gets_its_answer,
    "random_sentences": what_was_forgotten_times_out_and_comes_again,
    "reliable_sentences": what_failed_comes_again_until_it_is_done,
    "word_count": words_are_counted,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.quick] * (name == "word_count")) for name in EXAMPLES],
)
def test_an_example_does_what_it_promises(name, services, tmp_path):
    assert name in RUNS, f"add to RUNS what examples/{name}.py does"
    with running(name, services, tmp_path / "log") as example:
        RUNS[name](example)


def test_no_run_is_left_of_an_example_that_is_gone():
    assert set(RUNS) <= set(EXAMPLES)

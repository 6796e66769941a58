"""A bolt with ``Retry``: its task executes tuples again, on both engines."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.semantics.components import feeding
from tiercel import BasicBolt, Retry, TopologyBuilder

ORDERS = 100
ITEMS = 10
# On the simulated clock, where an engine has one, so that no test really waits.
WAIT_S = 0.2


class Shaky(BasicBolt):
    """Fails the first ``failures`` calls of each odd number, counted in a file for each."""

    output_fields = "n long"

    def __init__(self, folder: Path, failures: int) -> None:
        self.folder = folder
        self.failures = failures

    def execute(self, tup, collector):
        collector.emit([tup["x"]])
        with (self.folder / str(tup["x"])).open("a") as calls:
            calls.write(".")
            number = calls.tell()
        if tup["x"] % 2 and number <= self.failures:
            raise TimeoutError(f"call {number}")
        collector.emit([-tup["x"]])


def shaky(feeder, folder, failures):
    builder = TopologyBuilder("shaky")
    builder.set_spout("s", feeder)
    config = {"retry": Retry(attempts=3, wait=WAIT_S, on=TimeoutError)}
    builder.set_bolt("b", Shaky(folder, failures), config=config).shuffle_grouping("s")
    return builder.build()


def test_a_tuple_that_fails_is_executed_again_and_what_it_emits_leaves_once(cluster_of, tmp_path):
    feeder = feeding(*range(1, 9))
    cluster = cluster_of(shaky(feeder, tmp_path, 2))
    cluster.advance_time(2)
    assert (sorted(cluster.acked("s")), cluster.failed("s")) == (list(range(1, 9)), [])
    numbers = sorted(number for [number] in cluster.read_tuples("b"))
    assert numbers == [*range(-8, 0), *range(1, 9)]
    calls = {int(file.name): file.stat().st_size for file in tmp_path.iterdir()}
    assert calls == {number: 3 if number % 2 else 1 for number in range(1, 9)}


def test_after_the_last_attempt_the_tuple_fails_with_its_reason(cluster_of, tmp_path):
    feeder = feeding(*range(1, 9))
    cluster = cluster_of(shaky(feeder, tmp_path, 3))
    cluster.advance_time(2)
    assert sorted(cluster.failed("s")) == [1, 3, 5, 7]
    assert all("after 3 attempts: TimeoutError: call 3" in one for one in cluster.fail_reasons("s"))
    assert sorted(cluster.acked("s")) == [2, 4, 6, 8]


# -- with a server ---------------------------------------------------------------------------------


class Prices(BaseHTTPRequestHandler):
    """Answers 500 to the first call for three items in a hundred."""

    calls: Counter[int]
    priced: Counter[int]
    lock = threading.Lock()

    def do_GET(self):
        item = int(self.path.removeprefix("/"))
        with self.lock:
            self.calls[item] += 1
            fails = item % 100 in {7, 41, 83} and self.calls[item] == 1
            self.priced[item] += not fails
        self.send_response(500 if fails else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64


@pytest.fixture
def url() -> Iterator[str]:
    Prices.calls, Prices.priced = Counter(), Counter()
    with Server(("127.0.0.1", 0), Prices) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class Items(BasicBolt):
    output_fields = "item long"

    def execute(self, tup, collector):
        for number in range(ITEMS):
            collector.emit([tup["x"] * ITEMS + number])


class Price(BasicBolt):
    output_fields = "item long"

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, tup, collector):
        try:
            urllib.request.urlopen(f"{self.url}/{tup['item']}", timeout=30).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise
        collector.emit([tup["item"]])


def priced(feeder, url, retry):
    builder = TopologyBuilder("prices")
    builder.set_spout("s", feeder)
    builder.set_bolt("items", Items()).shuffle_grouping("s")
    config = {"threads": 8, "retry": retry}
    builder.set_bolt("price", Price(url), config=config).shuffle_grouping("items")
    return builder.build()


def until_all_are_acked(cluster, feeder) -> int:
    """Redeliver failed orders, as a queue does; return the number of redeliveries."""
    again: list[int] = []
    cluster.advance_time(2)
    while len(again) < len(cluster.failed("s")):
        for order in cluster.failed("s")[len(again) :]:
            again.append(order)
            feeder.feed([order], order)
        cluster.advance_time(2)
    assert sorted(cluster.acked("s")) == list(range(ORDERS))
    return len(again)


def test_a_thousand_calls_of_which_three_in_a_hundred_fail_are_made_1_03_thousand_times(
    cluster_of_basic, url
):
    feeder = feeding(*range(ORDERS))
    retry = Retry(attempts=5, wait=WAIT_S, on=urllib.error.HTTPError)
    cluster = cluster_of_basic(priced(feeder, url, retry))
    assert until_all_are_acked(cluster, feeder) == 0
    assert sum(Prices.calls.values()) == 1.03 * ORDERS * ITEMS
    assert Prices.priced == dict.fromkeys(range(ORDERS * ITEMS), 1)
    assert sorted(item for [item] in cluster.read_tuples("price")) == list(range(ORDERS * ITEMS))


def test_without_retries_each_order_is_priced_again_as_a_whole(cluster_of_basic, url):
    feeder = feeding(*range(ORDERS))
    cluster = cluster_of_basic(priced(feeder, url, None))
    assert until_all_are_acked(cluster, feeder) == 30
    assert sum(Prices.calls.values()) == 1.3 * ORDERS * ITEMS
    assert sum(count - 1 for count in Prices.priced.values()) == 270

"""Bodies of megabytes and odd headers in a load, while a connection breaks or a worker dies: other
messages are not affected.
"""

import random
import signal
import threading
import time

import pytest

from tests.faults.burdens import ODD, Executions, digest
from tests.faults.wired import Wired
from tests.support.broker import plain_channel
from tests.support.children import kill
from tests.support.raw import ODD as ODD_HEADERS
from tests.support.raw import Raw, properties
from tests.support.waiting import wait_until
from tiercel import Publisher

pytestmark = pytest.mark.timeout(600)

LARGE = 30
LARGE_BYTES = 2 * 1024 * 1024
# Number of small messages between two others.
SMALL = 20
# Headers that did harm, or could; ``tests/integration/queues/test_odd_headers.py`` has all of them.
HEADERS = [
    "timestamp in milliseconds",
    "table 2,000 deep",
    "array 2,000 deep",
    "name not UTF-8",
    "counts of a liar",
    "as large as a frame",
]
# Share of the messages processed before the fault, so that it strikes in the middle.
STRUCK_AFTER = 0.2
# More than four message timeouts, after which the ledger forgets roots that a killed worker
# registered and did not send.
WITHIN_S = 200
# A worker reports its counters twice per second.
COUNTED_S = 3


@pytest.fixture(scope="module")
def wired(tmp_path_factory, servers):
    folder = tmp_path_factory.mktemp("effects")
    with Wired(
        "tests.faults.burdens:odd", ODD, folder, master="local[2]", servers=servers
    ) as wired:
        with Publisher(wired.rabbitmq.url) as publisher:
            publisher.publish(ODD, [b"first"])
        wait_until(lambda: Executions(folder).done, 300, "the first message to be processed")
        yield wired


class Mixed:
    """Publishes large, odd and small messages in turn, on its own thread, to the broker."""

    def __init__(self, amqp_url, prefix):
        self._url = amqp_url
        self._thread = threading.Thread(target=self._run)
        drawn = random.Random(prefix)
        self.large = [drawn.randbytes(LARGE_BYTES) for _ in range(LARGE)]
        self.odd = [
            (name, f"{prefix}: {name}, {turn}".encode())
            for turn in range(LARGE // len(HEADERS))
            for name in HEADERS
        ]
        self.small = [
            [f"{prefix}: small {turn} {number}".encode() for number in range(SMALL)]
            for turn in range(LARGE)
        ]
        bodies = [
            *self.large,
            *(body for _, body in self.odd),
            *(body for turn in self.small for body in turn),
        ]
        self.keys = {digest(body) for body in bodies}
        assert len(self.keys) == len(bodies)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join()

    def _run(self):
        with plain_channel(self._url) as channel:
            for large, (name, body), small in zip(self.large, self.odd, self.small, strict=True):
                channel.basic_publish("", ODD, large, Raw(properties()), mandatory=True)
                channel.basic_publish(
                    "", ODD, body, Raw(properties(ODD_HEADERS[name])), mandatory=True
                )
                for each in small:
                    channel.basic_publish("", ODD, each, Raw(properties()), mandatory=True)


FAULTS = {
    "no fault": lambda _wired: None,
    "broker: connections cut": lambda wired: wired.broker_wire.cut(),
    "spout worker: SIGKILL": lambda wired: kill(wired.child("0"), signal.SIGKILL),
}
SLOW = {"spout worker: SIGKILL"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FAULTS]
)
def test_large_and_odd_messages_harm_no_neighbour(wired, name):
    began = time.monotonic()
    before = wired.counts()

    def processed():
        return len(mixed.keys.intersection(Executions(wired.folder).done))

    with Mixed(wired.rabbitmq.url, name) as mixed:
        wait_until(
            lambda: processed() >= STRUCK_AFTER * len(mixed.keys), WITHIN_S, "the first messages"
        )
        struck_with = processed()
        FAULTS[name](wired)
    wait_until(lambda: processed() == len(mixed.keys), WITHIN_S, "every message to be processed")
    processed_s = time.monotonic() - began
    wired.rests(WITHIN_S)
    time.sleep(COUNTED_S)
    found = Executions(wired.folder)
    counts = wired.counts() - before
    shown = {name: count for name, count in counts.items() if not name.startswith("complete")}
    repeated = sum(found.done[key] > 1 for key in mixed.keys)
    print(  # noqa: T201
        f"{name}: struck with {struck_with} of {len(mixed.keys)} processed, all after "
        f"{processed_s:.1f} s, {repeated} repeated; {shown}"
    )
    assert max(found.done[key] for key in mixed.keys) <= 2
    # The queue is empty and nothing was dead-lettered, so all messages are acked. The counters lack
    # the last counts of a killed worker.
    assert counts["timeout"] == counts["failed"] == 0
    assert wired.dead_lettered() == 0

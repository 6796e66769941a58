"""Messages that kill the Python process end in the dead-letter queue, and no other message fails or
is lost.
"""

import json
import re
import time
from contextlib import contextmanager

import pytest

from tests.faults import deadly
from tests.support.children import python_processes
from tests.support.memory_bound import MemoryBound
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.queues.errors import QueuesError
from tiercel.queues.publishing import dead_letters

pytestmark = pytest.mark.timeout(1200)

MESSAGES = 1_000
# Generous: each death needs a new Python worker, which takes long on a busy machine.
WITHIN_S = 400
# Returns beyond a message's own failures. RabbitMQ counts every return, tiercel only the failures
# that it saw. None is expected, but a broker that stalled when the prefetch changed may have taken
# a message back.
OTHER_RETURNS = 2
# Memory of all Spark's Python processes together, if the kernel bounds it.
PYTHON_MEMORY = 1024**3


class Stack:
    def __init__(self, topology):
        self.topology = topology
        self.published = 0
        self.deadly = set()

    def publish(self, messages, deaths=()):
        """Publish numbered messages, some of them deadly: ``deaths`` are spread evenly.

        Returns their numbers.
        """
        numbers = range(self.published, self.published + messages)
        kills = dict(
            zip(
                numbers[messages // 2 :: max(1, messages // 2 // max(1, len(deaths)))],
                deaths,
                strict=False,
            )
        )
        with Publisher(self.topology.amqp_url) as publisher:
            publisher.publish(
                deadly.QUEUE,
                (
                    json.dumps({"number": number, "death": kills.get(number, "")}).encode()
                    for number in numbers
                ),
            )
        self.published += messages
        self.deadly |= set(kills)
        return set(kills)

    def depth(self):
        (found,) = self.topology.depths(deadly.QUEUE)
        return found

    def at_rest(self):
        depth = self.depth()
        return not (depth.ready or depth.unacked or depth.delayed)

    def dead(self):
        """Return the reason of each dead letter by number, and delete the letters."""
        letters = dead_letters.show(self.topology.amqp_url, deadly.QUEUE, limit=MESSAGES)
        dead_letters.purge(self.topology.amqp_url, deadly.QUEUE)
        return {json.loads(letter.preview)["number"]: letter.reason for letter in letters}

    def missing(self):
        """Return the harmless messages that are not fully processed."""
        found = deadly.effects(self.topology.folder)
        return [
            number
            for number in range(self.published)
            if number not in self.deadly and found[number] < deadly.PARTS
        ]


@contextmanager
def started(name, folder, servers):
    with running(
        f"tests.faults.deadly:{name}", folder, deadly.EFFECTS, servers=servers
    ) as topology:
        stack = Stack(topology)
        wait_until(lambda: depths_known(stack), 60, "the workers to declare the queue")
        stack.publish(10)
        wait_until(lambda: not stack.missing(), WITHIN_S, "the first messages to be processed")
        yield stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory, servers):
    with started("topology", tmp_path_factory.mktemp("effects"), servers) as stack:
        yield stack


def depths_known(stack):
    try:
        return bool(stack.depth())
    except QueuesError:
        return False


def die_alone(stack, deaths):
    """Publish messages, some of them deadly; only these end in the dead-letter queue.

    Returns the reasons, one by one.
    """
    wait_until(stack.at_rest, WITHIN_S, "the messages before")
    began = time.monotonic()
    deadly_ones = stack.publish(MESSAGES, deaths)
    wait_until(lambda: not stack.missing(), WITHIN_S, "everything harmless to be processed")
    processed = time.monotonic() - began
    wait_until(
        lambda: stack.depth().dead_lettered == len(deaths) and stack.at_rest(),
        WITHIN_S,
        "the deadly ones to be dead",
    )
    ended = time.monotonic() - began
    dead = stack.dead()
    assert set(dead) == deadly_ones
    print(f"{deaths}: the harmless after {processed:.1f} s, dead after {ended:.1f} s")  # noqa: T201
    failures = deadly.DELIVERY_LIMIT + 1
    for reason in dead.values():
        delivered = re.search(r"delivered (\d+) times", reason)
        assert delivered, reason
        assert failures <= int(delivered[1]) <= failures + OTHER_RETURNS, reason
    return list(dead.values())


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(["exit", "exit"], marks=pytest.mark.quick),
        ["segfault", "killed"],
        pytest.param(["flush"], marks=pytest.mark.slow),
    ],
    ids=["the first bolt exits", "the second bolt is killed", "while flushing"],
)
def test_deadly_messages_die_alone(stack, deaths):
    for reason in die_alone(stack, deaths):
        assert "the Python process died" in reason


def test_a_message_that_allocates_without_end_is_refused_memory_and_fails_alone(stack):
    (reason,) = die_alone(stack, ["allocate"])
    assert "MemoryError" in reason


@pytest.mark.slow
def test_a_message_that_allocates_without_end_is_killed_by_the_kernel_and_dies_alone(stack):
    driver = stack.topology.run.driver
    with MemoryBound(
        lambda: python_processes(driver.pid) if driver.pid else (), PYTHON_MEMORY
    ) as bound:
        (reason,) = die_alone(stack, ["allocate"])
        assert bound.kills() >= deadly.DELIVERY_LIMIT + 1
    assert "the Python process died" in reason


def test_a_message_that_hangs_dies_alone(tmp_path, servers):
    with started("impatient", tmp_path, servers) as stack:
        die_alone(stack, ["hang"])

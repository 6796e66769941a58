"""Messages that kill the Python process end in the dead-letter queue, alone: nobody else fails, none is lost."""

import json
import time
from contextlib import ExitStack, contextmanager

import pytest

from compose import EmbeddedServices
from queues import Publisher, dead_letters
from queues.depths import depths
from queues.errors import QueuesError
from tests.faults import deadly
from tests.waiting import wait_until
from workers.config import Settings
from workers.local import LocalRun

pytestmark = pytest.mark.timeout(400)

MESSAGES = 1_000


class Stack:
    def __init__(self, services, run, folder):
        self.services, self.run, self.folder = services, run, folder
        self.published = 0
        self.deadly = set()

    def publish(self, messages, deaths=()):
        """Numbered messages, of which some are deadly: ``deaths`` are spread evenly. Returns their numbers."""
        numbers = range(self.published, self.published + messages)
        kills = dict(zip(numbers[messages // 2 :: max(1, messages // 2 // max(1, len(deaths)))], deaths, strict=False))
        with Publisher(self.services.amqp_url) as publisher:
            publisher.publish(
                deadly.QUEUE, (json.dumps({"number": number, "death": kills.get(number, "")}).encode() for number in numbers)
            )
        self.published += messages
        self.deadly |= set(kills)
        return set(kills)

    def depth(self):
        (found,) = depths(self.services.amqp_url, [deadly.QUEUE], self.services.management_url)
        return found

    def at_rest(self):
        depth = self.depth()
        return depth.ready == 0 and depth.unacked == 0

    def dead(self):
        """Number to reason, of the dead letters; they are thrown away."""
        letters = dead_letters.show(self.services.amqp_url, deadly.QUEUE, limit=MESSAGES)
        dead_letters.purge(self.services.amqp_url, deadly.QUEUE)
        return {json.loads(letter.preview)["number"]: letter.reason for letter in letters}

    def missing(self):
        """The harmless messages that are not fully processed."""
        found = deadly.effects(self.folder)
        return [number for number in range(self.published) if number not in self.deadly and found[number] < deadly.PARTS]


@contextmanager
def running(name, folder):
    with ExitStack() as exits:
        exits.enter_context(pytest.MonkeyPatch.context()).setenv(deadly.EFFECTS, str(folder))
        services = exits.enter_context(EmbeddedServices())
        settings = Settings.load(master="local[2]").with_services(
            services.amqp_url, services.redis_url, services.management_url
        )
        run = exits.enter_context(LocalRun(f"tests.faults.deadly:{name}", getattr(deadly, name)(), settings))
        stack = Stack(services, run, folder)
        wait_until(lambda: depths_known(stack), 60, "the workers to declare the queue")
        stack.publish(10)
        wait_until(lambda: not stack.missing(), 120, "the first messages to be processed")
        yield stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with running("topology", tmp_path_factory.mktemp("effects")) as stack:
        yield stack


def depths_known(stack):
    try:
        return bool(stack.depth())
    except QueuesError:
        return False


@pytest.mark.parametrize(
    "deaths",
    [["exit", "exit"], ["segfault", "memory"], ["flush"]],
    ids=["the first level exits", "the second level is killed", "while flushing"],
)
def test_deadly_messages_die_alone(stack, deaths):
    wait_until(stack.at_rest, 60, "the messages before")
    began = time.monotonic()
    deadly_ones = stack.publish(MESSAGES, deaths)
    wait_until(lambda: not stack.missing(), 120, "everything harmless to be processed")
    processed = time.monotonic() - began
    wait_until(lambda: stack.depth().dead_lettered == len(deaths) and stack.at_rest(), 200, "the deadly ones to be dead")
    ended = time.monotonic() - began
    dead = stack.dead()
    assert set(dead) == deadly_ones
    for reason in dead.values():
        assert f"delivered {deadly.DELIVERY_LIMIT + 1} times" in reason
        assert "the Python process died" in reason
    print(f"{deaths}: the harmless after {processed:.1f} s, dead after {ended:.1f} s")  # noqa: T201


def test_a_message_that_hangs_dies_alone(tmp_path):
    with running("impatient", tmp_path) as stack:
        began = time.monotonic()
        deadly_ones = stack.publish(MESSAGES, ["hang"])
        wait_until(lambda: not stack.missing(), 120, "everything harmless to be processed")
        processed = time.monotonic() - began
        wait_until(lambda: stack.depth().dead_lettered == 1 and stack.at_rest(), 200, "the one that hangs to be dead")
        assert set(stack.dead()) == deadly_ones
        print(f"hang: the harmless after {processed:.1f} s, dead after {time.monotonic() - began:.1f} s")  # noqa: T201

"""DESIGN's failure table on the whole stack: whatever dies, every message is fully processed and nothing is left behind.

One running topology for all faults: each test publishes its own numbers, injects its fault half way, and waits for its effects.
"""

import os
import signal
import threading
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from acker import LedgerUnavailableError, open_ledger
from compose import EmbeddedServices
from queues import Publisher
from queues.depths import depths
from queues.errors import QueuesError, RelayUnavailableError
from spark_jobs.job import ledger_spec_of, open_relay
from spark_jobs.levels import plan_topology
from tests.acceptance import numbered
from tests.children import kill, python_workers
from tests.waiting import wait_until
from workers.config import Settings
from workers.local import LocalRun

pytestmark = pytest.mark.timeout(300)

MESSAGES = 3_000
RATE = 500
"""A second."""
PROCESSED_WITHIN_S = 120


class Stack:
    """The running topology, its servers, and what it has done so far."""

    def __init__(self, services: EmbeddedServices, run: LocalRun, folder: Path):
        self.services, self.run, self.folder = services, run, folder
        self.numbers = count()
        self.published: list[int] = []

    def publish(self, messages: int) -> None:
        """At a steady ``RATE``, confirmed; goes on as soon as the broker is there again."""
        numbers = [next(self.numbers) for _ in range(messages)]
        never = threading.Event()

        def bodies():
            for index, number in enumerate(numbers):
                if index % (RATE // 20) == 0:
                    never.wait(1 / 20)
                yield b'{"number": %d}' % number

        with Publisher(self.services.amqp_url, patience=timedelta(seconds=60)) as publisher:
            publisher.publish(numbered.QUEUE, bodies())
        self.published += numbers

    def missing(self) -> int:
        """How many effects of published messages are not there."""
        found = numbered.effects(self.folder)
        return sum((number, part) not in found for number in self.published for part in range(numbered.FAN_OUT))

    def at_rest(self) -> bool:
        """Whether queue, relay and ledger are empty."""
        plan = plan_topology(numbered.topology(), max_lanes=1_000)
        try:
            relay, ledger = (
                open_relay(self.services.redis_url, plan),
                open_ledger(ledger_spec_of(plan, (self.services.redis_url,))),
            )
            left = relay.length() + ledger.pending()
        except (RelayUnavailableError, LedgerUnavailableError):
            return False
        depth = depths(self.services.amqp_url, [numbered.QUEUE], self.services.management_url)[0]
        return left == 0 and depth.ready == 0 and depth.unacked == 0 and not depth.dead_lettered

    def survives(self, fault) -> None:
        """Under a steady load, inject the fault; then wait until all is processed and nothing is left behind."""
        before = numbered.effects(self.folder).total()
        load = threading.Thread(target=self.publish, args=[MESSAGES])
        load.start()
        wait_until(lambda: numbered.effects(self.folder).total() > before + MESSAGES, 60, "the load to be processed")
        fault()
        load.join()
        wait_until(lambda: self.missing() == 0, PROCESSED_WITHIN_S, "every message to be processed")
        wait_until(self.at_rest, PROCESSED_WITHIN_S, "queue, relay and ledger to be empty")
        effects = numbered.effects(self.folder).total() - before
        print(f"{effects - MESSAGES * numbered.FAN_OUT} of {MESSAGES * numbered.FAN_OUT} effects were repeated")  # noqa: T201


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("effects")
    with ExitStack() as exits:
        environment = exits.enter_context(pytest.MonkeyPatch.context())
        environment.setenv(numbered.EFFECTS, str(folder))
        services = exits.enter_context(EmbeddedServices())
        settings = Settings.load(master="local[2]").with_services(
            services.amqp_url, services.redis_url, services.management_url
        )
        run = exits.enter_context(LocalRun("tests.acceptance.numbered:topology", numbered.topology(), settings))
        stack = Stack(services, run, folder)
        wait_until(lambda: depths_known(services), 60, "the workers to declare the queue")
        stack.publish(100)
        wait_until(lambda: stack.missing() == 0, 120, "the first messages to be processed")
        yield stack


def depths_known(services) -> bool:
    try:
        return bool(depths(services.amqp_url, [numbered.QUEUE]))
    except QueuesError:
        return False


def test_a_spout_worker_that_is_killed(stack):
    stack.survives(lambda: kill(stack.run.spout("numbers", 0), signal.SIGKILL))


def test_a_driver_that_is_killed(stack):
    stack.survives(lambda: kill(stack.run.driver, signal.SIGKILL))


def test_a_redis_that_comes_back_empty(stack):
    def fault():
        stack.services.redis.kill()
        stack.services.redis.restart(keep_data=False)

    stack.survives(fault)


def test_a_redis_that_does_not_answer_for_a_while(stack):
    def fault():
        stack.services.redis.pause()
        threading.Timer(4, stack.services.redis.resume).start()

    stack.survives(fault)


def test_a_broker_that_is_killed_and_started_again(stack):
    def fault():
        stack.services.rabbitmq.kill()
        stack.services.rabbitmq.start()

    stack.survives(fault)


def test_a_python_worker_of_spark_that_is_killed(stack):
    def fault():
        workers = python_workers(stack.run.driver.pid)
        assert workers, "Spark has no Python workers"
        os.kill(workers[-1], signal.SIGKILL)

    stack.survives(fault)

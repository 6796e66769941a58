"""Private servers, full queues and running topologies, the same for all measurements."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, closing, contextmanager
from pathlib import Path

import redis
from pika import BlockingConnection, URLParameters

from bench.probe import ProbeResults, environment
from tiercel import Publisher
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.contract import total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.compose.embedded import EmbeddedServices
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.spark_jobs.topology.graph import Topology, bolt_tasks, inboxes_of, ledger_spec_of
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Lease, SpoutSeats
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.control.registry import Registry
from tiercel.workers.control.steering import Steering
from tiercel.workers.loading import load_topology
from tiercel.workers.local.run import LocalRun

ROOT = Path(__file__).resolve().parents[1]
WORDS = 10
VOCABULARY = 5_000
# Sentences that a topology processes before it is measured, because a JVM is slow at first.
WARM_UP = 10_000
_LOOK_S = 0.05
_START_S = 240
_OBEY_S = 60


class BenchError(Exception):
    """A measurement failed and must not count; the message is one line."""


def sentences(count: int, seed: int = 1) -> Iterator[bytes]:
    """Generate sentences of ten words each, from a vocabulary of 5,000."""
    chance = random.Random(seed)
    vocabulary = [f"word{number}" for number in range(VOCABULARY)]
    for _ in range(count):
        yield " ".join(chance.choices(vocabulary, k=WORDS)).encode()


@contextmanager
def servers() -> Iterator[Settings]:
    """Start a private RabbitMQ and a private Redis; yield settings with their addresses.

    All other settings are the defaults.
    """
    # The processes import the measured topology from the folder that they start in.
    with chdir(ROOT), EmbeddedServices() as services:
        settings = Settings(log_level="warning", amqp=None, redis=None, management=None)
        yield settings.with_services(services.amqp_url, services.redis_url, services.management_url)


def fill(settings: Settings, queue: str, bodies: Iterator[bytes]) -> int:
    """Declare the queue as tiercel does, and publish with confirms; return the message count."""
    declare_queue(settings.amqp or "", WorkQueue(name=queue))
    with Publisher(settings.amqp or "") as publisher:
        return publisher.publish(queue, bodies)


def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Wait for a condition; raises BenchError if it is not met in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {within_s:.0f} s")
        time.sleep(_LOOK_S)


class Running:
    """A topology on this machine, run by the driver and spout workers of ``tiercel run``."""

    def __init__(
        self, topology: Topology, settings: Settings, reading: ProbeResults, local: LocalRun
    ) -> None:
        self.name = self.queue = topology.name
        self.settings = settings
        self.reading = reading
        # Number of messages that may be given back, where raising bolts are measured.
        self.tolerated = 0
        # Number of tuples per message in the counting bolt.
        self.words = WORDS
        self._local = local
        self._tasks = bolt_tasks(topology)
        self._every_inbox = inboxes_of(topology)
        self._metrics = RedisMetrics(settings.redis_urls[0], self.name)
        self._registry = Registry(settings.redis_urls[0])
        presences = RedisPresences(settings.redis_urls[0], self.name)
        self._spout_seats = SpoutSeats(presences)
        self._lease = Lease(presences)
        self._inboxes = open_inboxes(ledger_spec_of(topology, settings.redis_urls))

    def warm_up(self) -> None:
        """Wait until the topology has started and processed ``WARM_UP`` sentences."""
        for part in range(1, 3):
            fill(self.settings, self.queue, sentences(WARM_UP // 2, seed=part))
            done = part * WARM_UP // 2
            self.wait_for_acks(done, _START_S)
            self.wait_for_words(done * self.words, _START_S)

    def wait_until_ready(self) -> None:
        """Wait until the spouts are present and each bolt task has a process."""
        until(lambda: self.check() or self._ready(), _START_S, f"the start of {self.name}")

    def _ready(self) -> bool:
        note = self._registry.topologies().get(self.name)
        if note is None:
            return False
        spouts = range(1, note.spout_tasks + 1)
        if len(self._spout_seats.present(spouts)) < note.spout_tasks:
            return False
        holder = self._lease.holder()
        if holder is None or not holder.run:
            return False
        figures = self._inboxes.figures(self._tasks).values()
        return all(one.adopted and one.seen_s is not None for one in figures)

    def waiting(self) -> int:
        """Count the tuples in all inboxes, waiting or in an unfinished step."""
        return sum(one.tuples for one in self._inboxes.figures(self._every_inbox).values())

    def held(self) -> int:
        """Count the tuples in open windows, as last reported."""
        figures = self._inboxes.figures(self._tasks).values()
        return sum(one.windows.tuples for one in figures if one.windows is not None)

    def totals(self, component: str) -> Counter[str]:
        """Return the counters of a component, summed over its tasks, as last reported."""
        return total_of(self._metrics.totals(), component)

    def executed_by_task(self, component: str) -> dict[int, int]:
        """Return the number of tuples that each task of a component has executed."""
        tasks = self._metrics.totals().get(component, {})
        return {task: counts.get("executed", 0) for task, counts in tasks.items()}

    def close(self) -> None:
        """Release the connections; ``running`` ends the processes."""
        stores = (self._metrics, self._registry, self._lease, self._inboxes)
        for each in stores:
            each.close()

    def turn(self, state: State) -> None:
        """Activate or deactivate the topology, as the commands do; wait until the spouts obey."""
        said: list[str] = []
        steering = Steering.open(
            self.settings.redis_urls[0], self.name, said.append, threading.Event()
        )

        def obeyed() -> bool:
            steering.turn(state)
            return f"is {state.value}" in said[-1]

        until(obeyed, _OBEY_S, f"{self.name} to be {state.value}")

    def wait_for_acks(self, count: int, within_s: float) -> None:
        """Wait until this many messages are acked to the broker in total.

        Raises BenchError, also if a message was given back.
        """
        until(
            lambda: self.check() or self.reading.last().acked >= count,
            within_s,
            f"{count:,} acks of {self.name}",
        )

    def wait_for_words(self, count: int, within_s: float) -> None:
        """Wait until the second bolt has executed this many words in total. Raises BenchError."""
        until(
            lambda: self.check() or self.executed() >= count,
            within_s,
            f"{count:,} words of {self.name}",
        )

    def check(self) -> bool:
        """Raise BenchError if a process has died or a message was given back; else return False."""
        if self._local.refused or self._local.driver.restarts:
            raise BenchError(f"a process of {self.name} ended, see above")
        returned = self.reading.last().returned
        if returned > self.tolerated:
            raise BenchError(f"{returned} messages of {self.name} were given back")
        return False

    def executed(self) -> int:
        """Return the number of words that the second bolt has executed.

        The number is tiercel's counter, which each process reports once per second.
        """
        return self.totals("count")["executed"]

    def counted(self) -> int:
        """Return the number of words in the state that the topology wrote."""
        with redis.Redis.from_url(self.settings.redis_urls[0]) as client:
            keys = ["bench-counts", f"tiercel:{{{self.name}:0}}:state:count"]
            return sum(int(value) for key in keys for value in client.hvals(key))


@contextmanager
def running(
    kind: str, settings: Settings, *, timed: bool = False, module: str = "bench.topologies.words"
) -> Iterator[Running]:
    """Run a topology of a module within the block.

    Afterwards its queue is deleted, and Redis is emptied.
    """
    name = f"{module}:{kind}"
    queue = f"bench-{kind}"
    with tempfile.TemporaryDirectory(prefix="tiercel-bench-") as folder:
        reading = ProbeResults(Path(folder))
        fill(settings, queue, iter(()))
        try:
            topology = load_topology(name)
            with (
                environment(reading.environment(timed=timed)),
                LocalRun(name, topology, settings) as local,
                closing(Running(topology, settings, reading, local)) as found,
            ):
                yield found
        finally:
            clear(settings, [queue])


def clear(settings: Settings, queues: Sequence[str]) -> None:
    """Delete these queues and all keys in Redis."""
    connection = BlockingConnection(URLParameters(settings.amqp))
    for queue in queues:
        for each in (queue, f"{queue}.dead"):
            connection.channel().queue_delete(each)
    connection.close()
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        client.flushdb()

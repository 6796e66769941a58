"""Private servers, full queues, a running topology: the same for everything that is measured."""

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
from tiercel.spark_jobs.spark.run import ledger_spec_of
from tiercel.spark_jobs.topology.graph import Topology, bolt_tasks, inboxes_of
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
# Sentences that a topology has processed before it is measured: a JVM is slow at first.
WARM_UP = 10_000
_LOOK_S = 0.05
_START_S = 240
_OBEY_S = 60


class BenchError(Exception):
    """A measurement that must not count; one line."""


def sentences(count: int, seed: int = 1) -> Iterator[bytes]:
    """Ten words each, of a vocabulary of 5,000."""
    chance = random.Random(seed)
    vocabulary = [f"word{number}" for number in range(VOCABULARY)]
    for _ in range(count):
        yield " ".join(chance.choices(vocabulary, k=WORDS)).encode()


@contextmanager
def servers() -> Iterator[Settings]:
    """Yield the settings of a private RabbitMQ and a private Redis.

    Every process is started with them; the others are the defaults.
    """
    # The processes import the measured topology from the folder that they start in.
    with chdir(ROOT), EmbeddedServices() as services:
        settings = Settings(log_level="warning", amqp=None, redis=None, management=None)
        yield settings.with_services(services.amqp_url, services.redis_url, services.management_url)


def fill(settings: Settings, queue: str, bodies: Iterator[bytes]) -> int:
    """Declare the queue as tiercel does, and publish into it with confirms; returns how many."""
    declare_queue(settings.amqp or "", WorkQueue(name=queue))
    with Publisher(settings.amqp or "") as publisher:
        return publisher.publish(queue, bodies)


def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Wait; raises BenchError."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {within_s:.0f} s")
        time.sleep(_LOOK_S)


class Running:
    """A topology of ``bench/topologies`` on this machine.

    Driver and spout workers are the processes of ``tiercel run``.
    """

    def __init__(
        self, topology: Topology, settings: Settings, reading: ProbeResults, local: LocalRun
    ) -> None:
        self.name = self.queue = topology.name
        self.settings = settings
        self.reading = reading
        # Messages that may be given back: a bolt raises on them, where that is measured.
        self.tolerated = 0
        # Tuples of the bolt that counts, per message.
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
        """The processes have started and processed some thousand sentences."""
        for part in range(1, 3):
            fill(self.settings, self.queue, sentences(WARM_UP // 2, seed=part))
            done = part * WARM_UP // 2
            self.wait_for_acks(done, _START_S)
            self.wait_for_words(done * self.words, _START_S)

    def wait_until_ready(self) -> None:
        """The topology has started: its spouts answer, and each bolt task has a process."""
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
        """Tuples in all inboxes: waiting, or in a step that is not finished."""
        return sum(one.tuples for one in self._inboxes.figures(self._every_inbox).values())

    def totals(self, component: str) -> Counter[str]:
        """Return what all tasks of a component had counted some tenths of a second ago."""
        return total_of(self._metrics.totals(), component)

    def executed_by_task(self, component: str) -> dict[int, int]:
        """Return how many tuples each task of a component has executed."""
        tasks = self._metrics.totals().get(component, {})
        return {task: counts.get("executed", 0) for task, counts in tasks.items()}

    def close(self) -> None:
        """Release the connections; the processes end elsewhere."""
        stores = (self._metrics, self._registry, self._lease, self._inboxes)
        for each in stores:
            each.close()

    def turn(self, state: State) -> None:
        """Activate or deactivate, as the commands do; returns when the spouts obey."""
        said: list[str] = []
        steering = Steering.open(
            self.settings.redis_urls[0], self.name, said.append, threading.Event()
        )

        def obeyed() -> bool:
            steering.turn(state)
            return f"is {state.value}" in said[-1]

        until(obeyed, _OBEY_S, f"{self.name} to be {state.value}")

    def wait_for_acks(self, count: int, within_s: float) -> None:
        """Wait until this many messages in all were acked to the broker.

        Raises BenchError, also if any was given back.
        """
        until(
            lambda: self.check() or self.reading.last().acked >= count,
            within_s,
            f"{count:,} acks of {self.name}",
        )

    def wait_for_words(self, count: int, within_s: float) -> None:
        """Wait until the second bolt has had this many words in all. Raises BenchError."""
        until(
            lambda: self.check() or self.executed() >= count,
            within_s,
            f"{count:,} words of {self.name}",
        )

    def check(self) -> bool:
        """Raises BenchError if a process has died or a message was given back; False otherwise."""
        if self._local.refused or self._local.driver.restarts:
            raise BenchError(f"a process of {self.name} ended, see above")
        returned = self.reading.last().returned
        if returned > self.tolerated:
            raise BenchError(f"{returned} messages of {self.name} were given back")
        return False

    def executed(self) -> int:
        """Words that the second bolt has had, as tiercel counts them.

        Each process tells once per second.
        """
        return self.totals("count")["executed"]

    def counted(self) -> int:
        """Words in the state that the topology wrote."""
        with redis.Redis.from_url(self.settings.redis_urls[0]) as client:
            keys = ["bench-counts", f"tiercel:{{{self.name}:0}}:state:count"]
            return sum(int(value) for key in keys for value in client.hvals(key))


@contextmanager
def running(
    kind: str, settings: Settings, *, timed: bool = False, module: str = "bench.topologies.words"
) -> Iterator[Running]:
    """Start the topology of a module, and end it in order with the block.

    Its queue is deleted then, and its Redis emptied.
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
    """Delete these queues, and everything in Redis."""
    connection = BlockingConnection(URLParameters(settings.amqp))
    for queue in queues:
        for each in (queue, f"{queue}.dead"):
            connection.channel().queue_delete(each)
    connection.close()
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        client.flushdb()

"""A topology under a steady load while executors are killed: its counts, and how soon it is back at
full pace.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.acker.metrics.contract import total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.queues.broker.depths import depths

# Seconds under load before a fault, from the end of the previous one; and from the last fault until
# the pace is measured.
CALM_S = 10.0
RECOVERED_WITHIN_S = 30.0
LOOK_S = 10.0
# Share of the load that is processed at full pace.
GOOD = 0.9
_START_S = 240.0
_DRAIN_S = 240.0
_STOP_S = 60.0
_TICK_S = 0.1
_PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A topology of one queue, and its load."""

    topology: str
    name: str
    queue: str
    spout: str
    # The stateful bolt that counts the words of the messages.
    bolt: str
    # Messages per second.
    rate: int
    body: Callable[[int], str]


WORD_COUNT = Work(
    topology="tiercel.examples.word_count:topology",
    name="word-count",
    queue="sentences",
    spout="sentences",
    bolt="count",
    rate=500,
    body=lambda number: f"the falcon {number % 997} and the tiercel {number % 7}",
)
# One core can process five of these per second.
SLOW_WORK = Work(
    topology="slow_work:topology",
    name="slow-work",
    queue="numbers",
    spout="numbers",
    bolt="work",
    rate=4,
    body=str,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Servers, and the folder and environment of ``tiercel`` processes."""

    amqp_url: str
    redis_url: str
    folder: Path
    environment: dict[str, str]


@contextmanager
def processes(work: Work, place: Place, *options: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run ``tiercel driver`` with these options and one ``tiercel spout``, each with a log."""
    addresses = {"TIERCEL_AMQP": place.amqp_url, "TIERCEL_REDIS": place.redis_url}
    with ExitStack() as exits:
        running = []
        for name, arguments in (
            ("driver", ["driver", work.topology, *options]),
            ("spout", ["spout", work.topology, work.spout]),
        ):
            log = exits.enter_context((place.folder / f"{work.name}-{name}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "tiercel", *arguments],
                cwd=place.folder,
                env={**place.environment, **addresses},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            exits.callback(_end, process)
            running.append(process)
        yield running


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass
class Seen:
    """Findings of an exam; ``str`` is a row of a Markdown table."""

    work: str
    first_s: float = 0.0
    kills: list[str] = field(default_factory=list)
    # Seconds from each fault until messages were acked again.
    back_s: list[float] = field(default_factory=list)
    published: int = 0
    acked: int = 0
    again: int = 0
    lost: int = 0
    dead: int = 0
    extra: int = 0
    # Share of the load that was processed in ten seconds, 30 s or more after the last fault.
    pace: float = 0.0

    HEAD = (
        "| work | first message after | published | lost | dead letters | emitted again "
        "| counted twice | faults, and when it went on | pace afterwards |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |"
    )

    def __str__(self) -> str:
        pairs = zip(self.kills, self.back_s, strict=True)
        return (
            f"| {self.work} | {self.first_s:.0f} s | {self.published:,} | {self.lost} "
            f"| {self.dead} | {self.again:,} | {self.extra:,} "
            f"| {'; '.join(f'{kill}: {back:.0f} s' for kill, back in pairs)} "
            f"| {self.pace:.0%} of the load |"
        )

    @property
    def faults(self) -> list[str]:
        """Return the broken promises, one sentence each."""
        found = []
        if self.lost or self.dead:
            found.append(f"{self.lost} lost, {self.dead} dead letters")
        if self.acked != self.published:
            found.append(f"{self.acked} acked of {self.published}")
        if self.extra and not self.again:
            found.append(f"{self.extra} counted twice, though nothing was emitted again")
        if self.pace < GOOD:
            found.append(f"{self.pace:.0%} of the load 30 s after the last fault")
        return found


class Exam:
    """One running topology, on servers that this process can reach."""

    def __init__(self, work: Work, place: Place, alive: Callable[[], None]) -> None:
        """``alive`` raises if a process of the topology has ended."""
        self._work = work
        self._place = place
        self._alive = alive
        self._stop = threading.Event()
        self._published = 0
        # The topology may have run before on these servers.
        self._totals_before: Counter[str] = Counter()
        self._counted_before: Counter[str] = Counter()
        self._totals_before = self._totals()
        if self._totals_before:
            self._counted_before = self._counted()
        declare_queue(place.amqp_url, WorkQueue(name=work.queue))

    def take(self, kills: Sequence[Callable[[], str]]) -> Seen:
        """Run the topology through the whole exam; return the findings."""
        seen = Seen(work=self._work.name)
        began = time.monotonic()
        self._publish(iter([self._work.body(0)]))
        self._wait_for_acks(1, _START_S)
        seen.first_s = time.monotonic() - began
        _say(f"{self._work.name}: first message processed after {seen.first_s:.0f} s")
        load = threading.Thread(target=self._load)
        load.start()
        try:
            for kill in kills:
                self._pause(CALM_S)
                seen.kills.append(kill())
                killed_at, acked = time.monotonic(), self._acked()
                _say(f"{self._work.name}: {seen.kills[-1]}; {acked:,} acked")
                self._wait_for_acks(acked + self._work.rate, _START_S)
                seen.back_s.append(time.monotonic() - killed_at)
                _say(f"{self._work.name}: goes on after {seen.back_s[-1]:.0f} s")
            self._pause(killed_at + RECOVERED_WITHIN_S - time.monotonic())
            before = self._acked()
            self._pause(LOOK_S)
            seen.pace = (self._acked() - before) / (self._work.rate * LOOK_S)
        finally:
            self._stop.set()
            load.join()
        self._end(seen)
        return seen

    def _end(self, seen: Seen) -> None:
        self._wait_for_acks(self._published, _DRAIN_S)
        totals = self._totals()
        seen.published = self._published
        seen.acked = totals["acked"]
        seen.again = totals["failed"] + totals["timeout"] + totals["released"]
        [depth] = depths(self._place.amqp_url, [self._work.queue])
        seen.dead = depth.dead_lettered or 0
        expected: Counter[str] = Counter()
        for number in range(self._published):
            expected.update(self._work.body(number).split())
        counted = self._counted()
        seen.lost = (expected - counted).total()
        seen.extra = (counted - expected).total()

    def _counted(self) -> Counter[str]:
        """Read the state with the user's command."""
        done = subprocess.run(
            [sys.executable, "-m", "tiercel", "state", "show", self._work.name, self._work.bolt,
             "--json", "--limit", "1000000", "--redis", self._place.redis_url],
            cwd=self._place.folder, env=self._place.environment,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        entries = map(json.loads, done.stdout.splitlines())
        found = Counter({str(entry["key"]): int(entry["value"]) for entry in entries})
        found.subtract(self._counted_before)
        return found

    def _load(self) -> None:
        with Publisher(self._place.amqp_url, patience=_PATIENCE) as publisher:
            publisher.publish(self._work.queue, self._bodies())

    def _bodies(self) -> Iterator[bytes]:
        began, first = time.monotonic(), self._published
        while not self._stop.wait(_TICK_S):
            due = first + int((time.monotonic() - began) * self._work.rate)
            for number in range(self._published, due):
                yield self._work.body(number).encode()
                self._published = number + 1

    def _publish(self, bodies: Iterator[str]) -> None:
        with Publisher(self._place.amqp_url, patience=_PATIENCE) as publisher:
            self._published += publisher.publish(
                self._work.queue, (body.encode() for body in bodies)
            )

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._alive()
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))

    def _wait_for_acks(self, count: int, within_s: float) -> None:
        def there() -> bool:
            self._alive()
            return self._acked() >= count

        wait_until(there, within_s, f"{count} acks of {self._work.name}")

    def _acked(self) -> int:
        return self._totals()["acked"]

    def _totals(self) -> Counter[str]:
        with closing(RedisMetrics(self._place.redis_url, self._work.name)) as metrics:
            found = total_of(metrics.totals(), self._work.spout)
        found.subtract(self._totals_before)
        return found


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

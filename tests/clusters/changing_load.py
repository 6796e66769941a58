"""``make test-scaling``: ``--executors 1..4`` on a standalone Spark with room for four, under ten
times the load for five minutes and then a tenth of it. ``ARGS=60``: ten times for a minute;
``ARGS="60 yarn"``: on Hadoop's YARN.

Prints the executors and the backlog over time, and what must not be.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from tests.clusters.exam import Place, Work, processes
from tests.clusters.mini_yarn import MiniYarn, environment_archive
from tests.clusters.waiting_work import FOLDER
from tests.support.standalone import Standalone
from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.acker.metrics.contract import total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.compose.embedded import EmbeddedServices
from tiercel.workers.control.presence import ExecutorReport, Lease
from tiercel.workers.control.redis_control import RedisPresences

ROOT = Path(__file__).parents[2]
BURST_S = 300.0
TARGET_S = 60.0
# Time for the first message; an executor comes within this time on a machine of two busy cores.
_START_S = 240.0
_COMES_S = 30.0
_COUNTED_S = 5.0
# Waiting messages that are no backlog yet: two seconds of them.
_FEW_S = 2.0
WORK = Work(
    topology="waiting_work:topology",
    name="waiting-work",
    queue="scaled-numbers",
    spout="numbers",
    bolt="work",
    rate=0,
    body=str,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One look at the topology."""

    at_s: float
    phase: int
    wanted: int
    present: int
    # Messages published and not processed.
    open: int
    why: str


@dataclass
class Seen:
    """All looks, and the messages that were published, begun and failed."""

    # Messages per second, and seconds of each phase.
    phases: Sequence[tuple[float, float]]
    looks: list[Look] = field(default_factory=list)
    published: int = 0
    # How often each message was begun; empty where the tasks write into no folder of this machine.
    begun: Counter[str] = field(default_factory=Counter)
    executed: int = 0
    failed: int = 0

    def of(self, phase: int) -> Sequence[Look]:
        """The looks of one phase."""
        return [look for look in self.looks if look.phase == phase]

    @property
    def gone_after_s(self) -> float:
        """Seconds from the beginning of the burst to the last look with a backlog."""
        burst = self.of(1)
        few = self.phases[1][0] * _FEW_S
        late = [look.at_s for look in (*burst, *self.of(2)) if look.open > few]
        return max(late, default=burst[0].at_s) - burst[0].at_s

    @property
    def faults(self) -> list[str]:
        """Broken promises, one sentence each."""
        found = []
        if self.gone_after_s > 2 * TARGET_S + _COMES_S:
            found.append(f"the backlog was gone after {self.gone_after_s:.0f} s")
        if max(look.present for look in self.of(1)) < 4:
            found.append("the burst did not get four executors")
        if self.looks[-1].present != 1:
            found.append(f"{self.looks[-1].present} executors at the end")
        found += [
            f"phase {phase}: {turns} changes of direction"
            for phase in range(len(self.phases))
            if (turns := turns_of([look.wanted for look in self.of(phase)])) > 1
        ]
        # An executor that was taken away while it executed leaves messages to be begun again.
        twice = sum(number > 1 for number in self.begun.values())
        lost = self.published - (len(self.begun) or self.executed)
        if twice or lost or self.failed:
            found.append(f"{twice} begun twice, {lost} lost, {self.failed} failed")
        return found


def turns_of(numbers: Sequence[int]) -> int:
    """Return how often the numbers change between up and down."""
    ups = [after > before for before, after in pairwise(numbers) if after != before]
    return sum(before != after for before, after in pairwise(ups))


@contextmanager
def standalone(folder: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Run a standalone Spark; yields variables for the driver, and options of Spark."""
    (folder / "hosts").mkdir()
    with Standalone(folder / "hosts", hosts=4) as spark:
        yield {"PYSPARK_PYTHON": sys.executable}, {"spark.master": spark.url}


@contextmanager
def on_yarn(folder: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Run YARN; yields the same."""
    archive = environment_archive()
    with MiniYarn(folder) as yarn:
        options = {
            "spark.master": "yarn",
            "spark.yarn.stagingDir": f"file://{folder}",
            "spark.yarn.dist.archives": f"{archive}#environment",
            f"spark.executorEnv.{FOLDER}": os.environ[FOLDER],
        }
        known = {"HADOOP_CONF_DIR": str(yarn.configuration)}
        yield {**known, "PYSPARK_PYTHON": "./environment/bin/python"}, options


def main() -> int:
    """Print what was seen; return 1 if any of it must not be."""
    # Ended from outside, it ends all that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    burst_s = next((float(word) for word in sys.argv[1:] if word.isdecimal()), BURST_S)
    cluster = on_yarn if "yarn" in sys.argv[1:] else standalone
    with tempfile.TemporaryDirectory(prefix="tiercel-scaling-") as name:
        folder = Path(name)
        (folder / "written").mkdir()
        os.environ[FOLDER] = str(folder / "written")
        shutil.copy(Path(__file__).with_name("waiting_work.py"), folder)
        with EmbeddedServices() as servers, cluster(folder) as (variables, options):
            place = Place(
                amqp_url=servers.amqp_url,
                redis_url=servers.redis_url,
                folder=folder,
                environment={
                    **os.environ,
                    **variables,
                    "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
                },
            )
            seen = examined(place, options, burst_s)
        if seen.faults:
            keep(folder)
    return shown(seen)


def examined(place: Place, options: dict[str, str], burst_s: float) -> Seen:
    """Run the topology under the changing load, on a Spark with these options."""
    options = {"spark.executor.cores": "1", "spark.executor.memory": "512m", **options}
    master = options.pop("spark.master")
    arguments = [word for pair in options.items() for word in ("--conf", "=".join(pair))]
    arguments += ["--master", master, "--executors", "1..4"]
    declare_queue(place.amqp_url, WorkQueue(name=WORK.queue))
    with processes(WORK, place, *arguments) as running:
        seen = watched(place, burst_s, running)
    for path in Path(os.environ[FOLDER]).iterdir():
        seen.begun.update(path.read_text().split())
    return seen


def watched(place: Place, burst_s: float, running: Sequence[subprocess.Popen[bytes]] = ()) -> Seen:
    """Publish a load for a topology that starts, ten times as much, then a tenth; these processes
    of it must not end.

    One executor does twenty messages per second.
    """
    seen = Seen(((6.0, 40.0), (60.0, burst_s), (0.6, 120.0)))
    with (
        closing(RedisMetrics(place.redis_url, WORK.name)) as metrics,
        closing(Lease(RedisPresences(place.redis_url, WORK.name))) as lease,
    ):
        watch = Watch(place, metrics, lease, running, seen)
        watch.publish(iter(["first"]))
        wait_until(lambda: watch.acked() >= 1, _START_S, "the first message")
        for phase, (rate, seconds) in enumerate(seen.phases):
            watch.through(phase, rate, seconds)
        wait_until(lambda: watch.acked() >= seen.published, 60, "all messages")
        # Counters of the bolts come after those of the spout.
        time.sleep(_COUNTED_S)
        seen.executed = int(total_of(metrics.totals(), WORK.bolt)["executed"])
    return seen


class Watch:
    """Publishes a load, and looks once per second."""

    def __init__(
        self,
        place: Place,
        metrics: RedisMetrics,
        lease: Lease,
        running: Sequence[subprocess.Popen[bytes]],
        seen: Seen,
    ) -> None:
        self._place = place
        self._metrics = metrics
        self._lease = lease
        self._running = running
        self._seen = seen
        self._began = time.monotonic()

    def acked(self) -> int:
        """Messages that were processed."""
        for process in self._running:
            assert process.poll() is None, f"{process.args!r} has ended"
        found = total_of(self._metrics.totals(), WORK.spout)
        self._seen.failed = found["failed"] + found["timeout"]
        return int(found["acked"])

    def publish(self, bodies: Iterator[str]) -> None:
        """Publish messages, and count them."""
        with Publisher(self._place.amqp_url, patience=timedelta(seconds=60)) as publisher:
            self._seen.published += publisher.publish(WORK.queue, (b.encode() for b in bodies))

    def through(self, phase: int, rate: float, seconds: float) -> None:
        """Publish at this rate, and look, for this time."""
        stop = threading.Event()
        load = threading.Thread(target=self._load, args=[phase, rate, stop])
        load.start()
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self._look(phase)
                time.sleep(1)
        finally:
            stop.set()
            load.join()

    def _load(self, phase: int, rate: float, stop: threading.Event) -> None:
        began, sent = time.monotonic(), 0
        while not stop.wait(0.5):
            due = int((time.monotonic() - began) * rate)
            self.publish(f"{phase}-{number}" for number in range(sent, due))
            sent = due

    def _look(self, phase: int) -> None:
        holder = self._lease.holder()
        report = (holder and holder.executors) or ExecutorReport(wanted=0, present=0)
        look = Look(
            at_s=time.monotonic() - self._began,
            phase=phase,
            wanted=report.wanted,
            present=report.present,
            open=self._seen.published - self.acked(),
            why=report.why,
        )
        looks = self._seen.looks
        if not looks or (look.wanted, look.present) != (looks[-1].wanted, looks[-1].present):
            rate, _ = self._seen.phases[phase]
            print(
                f"{look.at_s:4.0f} s, {rate:g} messages/s: {look.wanted} wanted, {look.present} "
                f"present, {look.open} not processed ({look.why})",
                flush=True,
            )
        looks.append(look)


def shown(seen: Seen) -> int:
    """Print the result and what must not be."""
    print(f"\n{seen.published} messages; backlog gone after {seen.gone_after_s:.0f} s of the burst")
    for fault in seen.faults:
        print(f"FAILED: {fault}")
    return 1 if seen.faults else 0


def keep(folder: Path) -> None:
    """Keep the logs, which end with the folder."""
    kept = ROOT / "artifacts/scaling"
    kept.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.log"):
        shutil.copy(path, kept)
    print(f"the logs are in {kept}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

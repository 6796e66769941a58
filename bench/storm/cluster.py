"""One topology of Storm in local mode, in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from bench.contest import peer_process
from bench.probe import ProbeResults
from bench.rig import WORDS, BenchError, clear, fill, sentences, until
from bench.storm.build import FOLDER, classpath
from tiercel.queues.limits import PREFETCH
from tiercel.workers.config import Settings

# Word counts with bolts in Java and in Python, and the bolt that sleeps.
StormKind = Literal["java", "python", "sleep"]
# Sentences before a measurement. All of Storm runs in the JVM, which compiles hot code, so it needs
# more of them than tiercel. Its Python bolts have less than a tenth of the speed.
_WARM_UP = {"java": 60_000, "python": 6_000}
_PARTS = 3
_START_S = 120.0
_OBEY_S = 30.0
# Files in the probe's folder that bench/storm/java/Main.java and QueueSpout.java know, too.
_DEACTIVATE = "deactivate"
_PAUSED = "paused"
MAIN = "bench.storm.Main"
# Tasks of each bolt, as in tiercel's word count.
TASKS = 2


class StormRunning:
    """A topology of Storm that has started."""

    def __init__(
        self, kind: StormKind, settings: Settings, reading: ProbeResults, check: Callable[[], bool]
    ) -> None:
        self.kind = kind
        self.queue = f"bench-storm-{kind}"
        self.settings = settings
        self.reading = reading
        self._check = check
        self._reports = 0

    def warm_up(self) -> None:
        """Wait until the topology has started and processed sentences."""
        part = _WARM_UP[self.kind] // _PARTS
        for seed in range(_PARTS):
            fill(self.settings, self.queue, sentences(part, seed=seed))
            self.wait_for_acks((seed + 1) * part, _START_S)

    def turn(self, *, active: bool) -> None:
        """Activate or deactivate the topology, and wait until its spout obeys."""
        wanted = self.reading.folder / _DEACTIVATE
        if active:
            wanted.unlink()
        else:
            wanted.touch()
        paused = self.reading.folder / _PAUSED
        said = "active" if active else "deactivated"
        until(lambda: self.check() or paused.exists() != active, _OBEY_S, f"Storm to be {said}")

    def wait_for_acks(self, count: int, within_s: float) -> None:
        """Wait until this many messages are acked to the broker in total. Raises BenchError."""
        until(
            lambda: self.check() or self.reading.last().acked >= count,
            within_s,
            f"{count:,} acks of Storm",
        )

    def check(self) -> bool:
        """Raise BenchError if the process has ended or a message failed; else return False."""
        self._check()
        if returned := self.reading.last().returned:
            raise BenchError(f"{returned} messages of Storm failed")
        return False

    def check_words(self) -> None:
        """Raise BenchError unless the bolts have counted each word of all acked sentences once.

        The counts lie in the bolts' memory: an empty message has the bolts report them.
        """
        acked = self.reading.last().acked
        fill(self.settings, self.queue, iter([b""]))
        self.wait_for_acks(acked + 1, _START_S)
        reports = self.reading.folder.glob("counted-*")
        found = sum(int(path.read_text()) for path in reports)
        # Earlier reports are acked, too, and have no words.
        expected = WORDS * (acked - self._reports)
        self._reports += 1
        if found != expected:
            raise BenchError(f"Storm counted {found:,} words instead of {expected:,}")


@contextmanager
def storm_running(
    kind: StormKind, settings: Settings, *, tasks: int = TASKS
) -> Iterator[StormRunning]:
    """Run a topology of Storm within the block; afterwards its queue is deleted.

    Raises StormMissingError.
    """
    queue = f"bench-storm-{kind}"
    with tempfile.TemporaryDirectory(prefix="tiercel-bench-") as folder:
        reading = ProbeResults(Path(folder))
        # Storm keeps its data among the JVM's temporary files: they are removed with the folder.
        scratch = Path(folder, "scratch")
        scratch.mkdir()
        argv = [
            *("java", f"-Djava.io.tmpdir={scratch}", MAIN),
            *(kind, queue, str(PREFETCH), str(tasks), folder, sys.executable, str(FOLDER)),
        ]
        fill(settings, queue, iter(()))
        try:
            with peer_process(argv, settings, {"CLASSPATH": classpath()}) as check:
                yield StormRunning(kind, settings, reading, check)
        finally:
            clear(settings, [queue])

"""A whole topology on one machine: one process per spout task, and the driver; with ``--reload``
they are restarted when the code changes.

Before a restart a new process, which has not imported the old code, loads the topology and writes
its outline to a file: ``python -m tiercel.workers.local.run MODULE:TOPOLOGY FILE``.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.contract import Metrics, total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.management import ManagementSilentError, read_alarms
from tiercel.queues.errors import QueuesError
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.reasons import is_users
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.config import Settings, child_environment, python_path
from tiercel.workers.control.presence import SpoutSeats
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.errors import WorkersError
from tiercel.workers.loading import load_for_spark, module_of
from tiercel.workers.processes import Child, Supervisor

_NAMES = ("emitted", "acked", "failed", "timeout", "released", "rejected", "no_identity")

_PROGRESS_S = 10.0
# Time for a worker to requeue messages and close connections, after its own grace period.
_WORKER_GRACE = timedelta(seconds=5)


class LocalRun:
    """The processes of one topology, which end with the ``with`` block or with this process."""

    def __init__(self, name: str, topology: Topology, settings: Settings) -> None:
        """``name`` is an argument for ``load_topology``; ``settings`` name both servers."""
        self._name = name
        self._topology = topology
        self._settings = settings
        self._supervisor = Supervisor(
            timedelta(seconds=topology.config.shutdown_grace_secs) + _WORKER_GRACE
        )

    def spout(self, component: str, index: int) -> Child:
        """Return the process of a spout task."""
        return self._supervisor.child(spout_name(component, index))

    @property
    def driver(self) -> Child:
        return self._supervisor.child("driver")

    @property
    def refused(self) -> list[str]:
        """Names of the processes that have ended, and stay down until an operator acts."""
        return [child.name for child in self._supervisor.refused]

    def wait(self, stopped: threading.Event, code: Changes | None = None) -> None:
        """Wait until ``stopped`` is set, the topology was killed, or a process has refused to work.

        Logs the progress and RabbitMQ's alarms every ten seconds, and changes of the ``code``.
        """
        topology = self._topology
        url = self._settings.redis_urls[0]
        seats = SpoutSeats(RedisPresences(url, topology.name))
        tasks = range(1, topology.spout_tasks + 1)
        progress = Progress(
            RedisMetrics(url, topology.name),
            topology.spouts,
            time.monotonic(),
            lambda: sum(each.pending for each in seats.present(tasks).values()),
        )
        alarms = Alarms(self._settings)
        # Only the driver's exit shows that the topology was killed: a spout worker that dies just
        # then is restarted, and waits in vain.
        while not self.refused and self.driver.exit_code != 0 and not stopped.wait(0.5):
            if code is not None:
                warn_of_changes(code)
            now = time.monotonic()
            if progress.is_due(now):
                progress.look(now)
                alarms.look()

    def __enter__(self) -> Self:
        """Start the driver first, because it takes longest, then the spout workers."""
        self._start("driver", "driver")
        for component, spec in self._topology.spouts.items():
            for index in range(spec.parallelism):
                name = spout_name(component, index)
                self._start(name, "spout", component, "--task-index", str(index))
        return self

    def __exit__(self, *_: object) -> None:
        """Send SIGTERM to all processes; messages in flight are finished or requeued."""
        self._supervisor.stop()

    def _start(self, child: str, command: str, *arguments: str) -> None:
        environment = {**self._settings.as_environment(), **python_path(Path.cwd())}
        argv = [sys.executable, "-m", "tiercel", command, self._name, *arguments, "--child"]
        self._supervisor.start(Child(child, argv, environment))


def spout_name(component: str, index: int) -> str:
    """Return the name of a spout worker in logs."""
    return f"spout-{component}-{index}"


class Progress:
    """Logs progress from the spouts' counters; logs nothing while Redis is unavailable."""

    def __init__(
        self,
        metrics: Metrics,
        spouts: Iterable[str],
        now: float,
        in_flight: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``now`` is monotonic time in seconds, as in ``look``.

        ``in_flight`` returns the number of messages in flight as the spout workers report it.
        Counters do not know it: they lack the outcomes of a worker that was killed.
        """
        self._metrics, self._spouts = metrics, tuple(spouts)
        self._in_flight = in_flight
        # The servers may be kept ones: earlier runs have counted.
        self._before = self._counts()
        self._said_in_flight: int | None = 0
        self._looked_at = now
        self._look_at = now + _PROGRESS_S

    def is_due(self, now: float) -> bool:
        """Return True every ten seconds; after a standstill of the machine once, not once per ten
        seconds missed.
        """
        if now < self._look_at:
            return False
        self._look_at = now + _PROGRESS_S
        return True

    def look(self, now: float) -> None:
        """Log the progress since the last call, if there was any."""
        counts = self._counts()
        if counts is None:
            return
        before, self._before = self._before, counts
        seconds, self._looked_at = now - self._looked_at, now
        if before is None:
            return
        try:
            in_flight = self._in_flight()
        except AckerError:
            in_flight = None
        changed = in_flight is not None and in_flight != self._said_in_flight
        if changed or any(counts[name] != before[name] for name in _NAMES):
            self._said_in_flight = in_flight
            line = describe(before, counts, seconds, in_flight)
            log.info("%s", line, extra={"event": "progress"})

    def _counts(self) -> Counter[str] | None:
        """Return the counters of all spouts; None while Redis is unavailable."""
        try:
            totals = self._metrics.totals()
        except AckerError:
            return None
        counts: Counter[str] = Counter()
        for spout in self._spouts:
            counts.update(total_of(totals, spout))
        return counts


def describe(
    before: Counter[str], now: Counter[str], seconds: float, in_flight: int | None = None
) -> str:
    """Return ``1,234 acked (123 per second), 5 failed, 7 released, 100 in flight``.

    If ``in_flight`` is not known, it is the number of messages without an outcome.
    """
    # If Redis lost the counters, they have begun again at 0.
    done = now["acked"] - (before["acked"] if before["acked"] <= now["acked"] else 0)
    if in_flight is None:
        in_flight = now["emitted"] - now["acked"] - now["failed"] - now["released"]
    parts = [
        f"{now['acked']:,} acked ({done / max(seconds, 0.001):,.0f} per second)",
        f"{now['failed']:,} failed",
    ]
    shown = {"timeout": "timeout", "released": "released", "rejected": "rejected"}
    shown["no_identity"] = "without an identity"
    parts += [f"{now[name]:,} {words}" for name, words in shown.items() if now[name]]
    return ", ".join([*parts, f"{max(in_flight, 0):,} in flight"])


class Alarms:
    """Logs RabbitMQ's alarms, if its HTTP API is known and answers."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.management
        self._address = Address.parse(settings.amqp or "")
        self._alarms: list[str] = []

    def look(self) -> None:
        """Log alarms that have begun or ended since the last call."""
        if self._url is None:
            return
        before = self._alarms
        with suppress(ManagementSilentError):
            self._alarms = read_alarms(self._url, self._address)
        if self._alarms and self._alarms != before:
            log.warning(
                "RabbitMQ at %s has a %s alarm: nothing can be published until it has room again; "
                "it still delivers",
                self._address,
                " and a ".join(self._alarms),
                extra={"event": "broker_lost"},
            )
        elif before and not self._alarms:
            log.info(
                "the alarm of RabbitMQ at %s is over",
                self._address,
                extra={"event": "broker_back"},
            )


# Time of the last change in nanoseconds, and size; None: the file does not exist.
_Look = tuple[int, int] | None
log = logging.getLogger(__name__)

_LOOK_S = 0.3
_LOADS_WITHIN_S = 60.0
# A run stops its own processes, each with its grace period, and then ends.
_RUN_GRACE = timedelta(seconds=15)


class ReloadingRun:
    """Runs one ``tiercel run`` after the other on the same servers, each with the current code.

    Each is a new process, because Python does not forget imported modules.
    """

    def __init__(
        self, name: str, topology: Topology, settings: Settings, stopped: threading.Event
    ) -> None:
        """``name`` is the argument that this process has passed to ``load_topology``."""
        self._name = name
        self._topology = topology.name
        self._grace = timedelta(seconds=topology.config.shutdown_grace_secs) + _RUN_GRACE
        # Bytecode caches identify a file by its size and time in seconds, and would miss a second
        # change within the same second.
        self._environment = {**settings.as_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
        self._stopped = stopped
        self._changes = Changes(files_of(name))
        self._beside = Path(sys.modules[module_of(name)].__file__ or ".").absolute().parent

    def run(self) -> None:
        """Work until ``stopped`` is set, or until the topology was killed."""
        goes_on = True
        while goes_on:
            with Supervisor(self._grace) as supervisor:
                argv = [sys.executable, "-m", "tiercel", "run", self._name, "--generation"]
                child = supervisor.start(Child("run", argv, self._environment))
                goes_on = self._wait_for_new_code(child)

    def _wait_for_new_code(self, child: Child) -> bool:
        """Return True when new code can start; False if the run is over."""
        said = False
        while not self._stopped.wait(_LOOK_S):
            if child.exit_code == 0:
                return False
            if child.exit_code is not None and not said:
                said = True
                log.warning(
                    "%s cannot run with this code, see the log above; waiting for a change",
                    self._topology,
                    extra={"event": "code_refused"},
                )
            changed = self._changes.look()
            if changed and self._may_start(changed, child):
                return True
        return False

    def _may_start(self, changed: Sequence[Path], child: Child) -> bool:
        outline = self._look_at_code()
        error = outline.error
        if not error and outline.topology != self._topology:
            error = (
                f"{self._name} is now the topology {outline.topology}, no longer "
                f"{self._topology}: end this run and start another"
            )
        if error:
            # The fix may be in a file that is not imported yet.
            self._changes.also(self._beside.glob("*.py"))
            log.warning(
                "%s; %s",
                error,
                "the old code keeps running" if child.exit_code is None else "waiting for a change",
                extra={"event": "code_refused"},
            )
            return False
        self._changes.follow(outline.files)
        log.info(
            "%s changed: restarting %s; messages in flight are requeued",
            ", ".join(sorted({file.name for file in changed})),
            self._topology,
            extra={"event": "code_reloaded"},
        )
        return True

    def _look_at_code(self) -> Outline:
        with tempfile.TemporaryDirectory(prefix="tiercel-") as folder:
            answer = Path(folder) / "outline"
            module = "tiercel.workers.local.run"
            argv = [sys.executable, "-m", module, self._name, str(answer)]
            process = GuardedProcess(Launch(argv=argv, env=child_environment(self._environment)))
            try:
                deadline = time.monotonic() + _LOADS_WITHIN_S
                while process.wait(_LOOK_S) is None and not self._stopped.is_set():
                    if time.monotonic() > deadline:
                        return Outline(error=f"{self._name} did not load within a minute")
            finally:
                process.kill()
            try:
                return Outline.from_json(answer.read_text())
            except (OSError, ValueError):
                return Outline(error=f"loading {self._name} ended Python")


class Changes:
    """Notices changes of a set of files."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._known: dict[Path, _Look] = {}
        self._last: dict[Path, _Look] = {}
        self.follow(files)

    def follow(self, files: Iterable[Path]) -> None:
        """Follow only these files from now on; files followed before keep their last state."""
        self._known = {file: self._known.get(file, _look(file)) for file in files}
        self._last = dict(self._known)

    def also(self, files: Iterable[Path]) -> None:
        """Follow these files as well."""
        self.follow([*self._known, *files])

    def look(self) -> list[Path]:
        """Return the files that changed since changes were last returned.

        Returns none until two looks are equal, because an editor may still be writing.
        """
        now = {file: _look(file) for file in self._known}
        written, self._last = now == self._last, now
        if not written:
            return []
        changed = [file for file, seen in now.items() if seen != self._known[file]]
        self._known = now
        return changed


def warn_of_changes(code: Changes) -> None:
    """Log files that changed since the last call, if there are any.

    A process that ends is started again, with the code that is there then; a driver and spouts
    with different code send nothing to each other.
    """
    if changed := code.look():
        log.warning(
            "%s changed, and this run has the old code: start it again, or use --reload; a process "
            "that ends until then is started with the new code, and may not work with the others",
            ", ".join(sorted({file.name for file in changed})),
            extra={"event": "code_changed"},
        )


def _look(file: Path) -> _Look:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A topology as its current code defines it."""

    # The reason why it cannot start, one line; empty if it can.
    error: str = ""
    topology: str = ""
    files: tuple[Path, ...] = ()

    def as_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Outline:
        """Parse the output of ``as_json``. Raises ValueError for anything else."""
        said = json.loads(text)
        return cls(**{**said, "files": tuple(map(Path, said["files"]))})


def files_of(name: str) -> Iterator[Path]:
    """Yield the files of user code that this process has imported, and all files of the package of
    ``MODULE:TOPOLOGY``.
    """
    for module, loaded in sorted(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if file and module != "__main__" and is_users(module, file):
            yield Path(file).absolute()
    top = module_of(name).partition(".")[0]
    found = getattr(sys.modules.get(top), "__file__", None)
    if found and Path(found).name == "__init__.py" and is_users(top, found):
        yield from sorted(Path(found).absolute().parent.rglob("*.py"))


def _outline(name: str) -> Outline:
    try:
        topology = load_for_spark(name, Settings.load().spout_tasks)
    except (WorkersError, SparkJobsError, QueuesError) as error:
        return Outline(error=redact(str(error)))
    return Outline(topology=topology.name, files=tuple(dict.fromkeys(files_of(name))))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(_outline(sys.argv[1]).as_json())

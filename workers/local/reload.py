"""A run whose processes are restarted when the topology's code has changed."""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.config import Settings, child_environment
from tiercel.workers.loading import module_of
from tiercel.workers.local.outline import Outline, files_of
from tiercel.workers.processes import Child, Supervisor

# Time of the last change in nanoseconds, size; None: there is no such file.
_Look = tuple[int, int] | None
log = logging.getLogger(__name__)

_LOOK_S = 0.3
_LOADS_WITHIN_S = 60.0
# A run stops its own processes, each with its grace time, and then ends.
_EXTRA_GRACE = timedelta(seconds=15)


class ReloadingRun:
    """Runs one ``tiercel run`` after the other on the same servers, each with the current code.

    Each is a new process, because Python keeps what it has imported.
    """

    def __init__(
        self, name: str, topology: Topology, settings: Settings, stopped: threading.Event
    ) -> None:
        """``name`` is the name that this process has passed to ``load_topology``."""
        self._name = name
        self._topology = topology.name
        self._grace = timedelta(seconds=topology.config.shutdown_grace_secs) + _EXTRA_GRACE
        # Bytecode caches know a file by its size and second, and would miss a second change within
        # one.
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
        """Return True when there is new code that can start; False if the run is over."""
        said = False
        while not self._stopped.wait(_LOOK_S):
            if child.exit_code == 0:
                return False
            if child.exit_code is not None and not said:
                said = True
                log.warning(
                    "%s cannot run with this code: the reason stands above; waiting for a change",
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
                f"{self._name} is the topology {outline.topology} now, and no longer "
                f"{self._topology}: end this run and start another"
            )
        if error:
            # The fix may be in a file that is not imported yet.
            self._changes.also(self._beside.glob("*.py"))
            log.warning(
                "%s; %s",
                error,
                "the old code goes on" if child.exit_code is None else "waiting for a change",
                extra={"event": "code_refused"},
            )
            return False
        self._changes.follow(outline.files)
        log.info(
            "%s changed: restarting %s; messages in flight are given back",
            ", ".join(sorted({file.name for file in changed})),
            self._topology,
            extra={"event": "code_reloaded"},
        )
        return True

    def _look_at_code(self) -> Outline:
        with tempfile.TemporaryDirectory(prefix="tiercel-") as folder:
            answer = Path(folder) / "outline"
            module = "tiercel.workers.local.outline"
            argv = [sys.executable, "-m", module, self._name, str(answer)]
            process = GuardedProcess(Launch(argv=argv, env=child_environment(self._environment)))
            try:
                deadline = time.monotonic() + _LOADS_WITHIN_S
                while process.wait(_LOOK_S) is None and not self._stopped.is_set():
                    if time.monotonic() > deadline:
                        return Outline(error=f"{self._name} does not load within a minute")
            finally:
                process.kill()
            try:
                return Outline.from_json(answer.read_text())
            except (OSError, ValueError):
                return Outline(error=f"{self._name} ended Python while it was loaded")


class Changes:
    """Notices changes of the files that it follows."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._known: dict[Path, _Look] = {}
        self._last: dict[Path, _Look] = {}
        self.follow(files)

    def follow(self, files: Iterable[Path]) -> None:
        """Follow only these files from now on; known files keep their last known state."""
        self._known = {file: self._known.get(file, _look(file)) for file in files}
        self._last = dict(self._known)

    def also(self, files: Iterable[Path]) -> None:
        """Follow these files as well."""
        self.follow([*self._known, *files])

    def look(self) -> list[Path]:
        """Return the files that have changed since the last returned change.

        Waits for two equal looks, because an editor may still be writing.
        """
        now = {file: _look(file) for file in self._known}
        written, self._last = now == self._last, now
        if not written:
            return []
        changed = [file for file, seen in now.items() if seen != self._known[file]]
        self._known = now
        return changed


def _look(file: Path) -> _Look:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size

"""Child processes of a command: restarted when they die, stopped together, never left behind."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.workers.config import child_environment

log = logging.getLogger(__name__)

# Exit code of a child that needs an operator: a restart cannot help.
_USAGE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """The pause before a dead child is restarted.

    It doubles with each death, and is reset when a child has lived for ``quiet``.
    """

    first: timedelta = timedelta(milliseconds=500)
    longest: timedelta = timedelta(seconds=30)
    quiet: timedelta = timedelta(seconds=60)

    def delay(self, deaths: int) -> timedelta:
        """Return the pause after ``deaths`` deaths in a row, at least 1."""
        return min(self.longest, self.first * (1 << min(deaths - 1, 16)))


class Child:
    """One child process that is kept running. Thread-safe; started once, stopped once.

    It has its own session, so Ctrl-C at the terminal reaches only the command, which then stops the
    child. It is killed when this process ends, however that happens. It inherits stdout and stderr;
    ``env`` is added to this process's environment. Exit code 0 means that it has finished, 2 that
    it refused to work. After any other end it is restarted.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name
        self._launch = Launch(argv=tuple(argv), env=child_environment(env or {}))
        self._backoff = backoff or Backoff()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process: GuardedProcess | None = None
        self._watcher: threading.Thread | None = None
        self._restarts = 0
        self._exit_code: int | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the running process; None between restarts and after the end."""
        with self._lock:
            return (
                self._process.pid
                if self._process is not None and self._process.poll() is None
                else None
            )

    @property
    def restarts(self) -> int:
        """Number of restarts."""
        return self._restarts

    @property
    def exit_code(self) -> int | None:
        """The final exit code, negative for a signal; None while it is kept running."""
        return self._exit_code

    def start(self) -> None:
        """Start the child, and keep it running.

        Raises OSError if the machine lacks the resources for it.
        """
        self._spawn()
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{self.name}", daemon=True)
        self._watcher.start()

    def stop(self, grace: timedelta) -> None:
        """Send SIGTERM, then after ``grace`` SIGKILL to the child and its descendants.

        Returns when all have ended. Idempotent.
        """
        self._stopping.set()
        with self._lock:  # any restart under way has either happened by now, or will not happen
            process = self._process
        if process is not None:
            process.terminate()
            if process.wait(grace.total_seconds()) is None:
                log.warning(
                    "%s did not end within %s, killing it",
                    self.name,
                    grace,
                    extra={"event": "child_killed"},
                )
            process.kill()
        if self._watcher is not None:
            self._watcher.join()

    def _spawn(self) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._process = GuardedProcess(self._launch)
            pid = self._process.pid
        again = self._watcher is not None
        log.log(
            logging.INFO if again else logging.DEBUG,
            "%s runs %sas process %d",
            self.name,
            "again, " if again else "",
            pid,
            extra={"event": "child_started", "child": self.name, "pid": pid},
        )

    def _watch(self) -> None:
        deaths = 0
        while (process := self._process) is not None:
            started = time.monotonic()
            code = process.wait()
            process.kill()  # the processes left behind in its group
            if self._stopping.is_set() or code in (0, _USAGE):
                self._end(code)
                return
            deaths = (
                1
                if time.monotonic() - started > self._backoff.quiet.total_seconds()
                else deaths + 1
            )
            delay = self._backoff.delay(deaths)
            log.warning(
                "%s ended %s, restarting it in %.1f s", self.name, _spoken(code),
                delay.total_seconds(),
                extra={"event": "child_died", "child": self.name, "exit_code": code},
            )  # fmt: skip
            if self._stopping.wait(delay.total_seconds()) or not self._restart():
                self._end(code)
                return

    def _restart(self) -> bool:
        try:
            self._spawn()
        except OSError as error:
            log.error(
                "%s cannot be restarted: %s",
                self.name,
                error,
                extra={"event": "child_lost", "child": self.name},
            )
            return False
        self._restarts += 1
        return not self._stopping.is_set()

    def _end(self, code: int | None) -> None:
        self._exit_code = code
        finished = code == 0 and not self._stopping.is_set()
        log.log(
            logging.INFO if finished else logging.DEBUG,
            "%s ended %s and is not started again",
            self.name,
            _spoken(code),
            extra={"event": "child_ended", "child": self.name, "exit_code": code},
        )


class Supervisor:
    """A group of children that are stopped together. Thread-safe."""

    def __init__(self, grace: timedelta = timedelta(seconds=10)) -> None:
        self._grace = grace
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}
        self._stopped = False

    def start(self, child: Child) -> Child:
        """Start ``child`` and keep it running. Its name must be unique."""
        with self._lock:
            if self._stopped:
                raise RuntimeError("the supervisor has been stopped")
            if child.name in self._children:
                raise ValueError(f"there is a child {child.name!r} already")
            child.start()
            self._children[child.name] = child
        return child

    def child(self, name: str) -> Child:
        """Return the child of this name; raises KeyError."""
        return self._children[name]

    @property
    def children(self) -> tuple[Child, ...]:
        with self._lock:
            return tuple(self._children.values())

    @property
    def refused(self) -> tuple[Child, ...]:
        """Children that ended for good without finishing; the rest cannot do the work alone."""
        return tuple(child for child in self.children if child.exit_code not in (None, 0))

    def stop(self) -> None:
        """Stop all children in parallel, each with the full grace period. Idempotent."""
        with self._lock:
            self._stopped = True
        stoppers = [
            threading.Thread(target=child.stop, args=(self._grace,), daemon=True)
            for child in self.children
        ]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _spoken(code: int | None) -> str:
    if code is None:
        return "without a code"
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"

"""Notes of this user's runs on this machine: topology, process, and addresses of private servers.

While the servers run, a note has their addresses with passwords, and only the user can read it.
Only the user may enter the folder of the notes. Without XDG_RUNTIME_DIR it is in /tmp, where
another user could take its name first, or put a link there.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from tiercel.workers.config import Settings, runtime_folder
from tiercel.workers.errors import ConfigError, UsageError

_LONGEST = 64 * 1024
_NAME = re.compile(r"run-[\w-]+\.json")
_READABLE = 40
# Longest wait for a run that ends, and the time between two looks.
_ENDS_WITHIN_S = 60.0
_LOOK_S = 0.2
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunNote:
    """A run as other commands know it."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")
    topology: str
    # The topology's queues, by which commands find the run.
    queues: tuple[str, ...] = ()
    pid: int
    # Start time of the process, in ticks since boot, because pids are reused.
    started: int
    # False: the run uses named servers.
    private: bool = True
    # The run stops its private servers, and ends.
    ending: bool = False
    # Addresses of its private servers, with passwords; None until they are ready.
    amqp: str | None = field(default=None, repr=False)
    redis: str | None = field(default=None, repr=False)
    management: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.topology} (process {self.pid})"

    @property
    def lives(self) -> bool:
        return _started(self.pid) == self.started


_NOTE = TypeAdapter(RunNote)


class Claim:
    """The right of this process to run a topology."""

    def __init__(self, folder: int, file: str, note: RunNote) -> None:
        self._folder = folder
        self._file = file
        self._note = note

    @property
    def path(self) -> Path:
        """The path of the file with the addresses."""
        return _place() / self._file

    @contextmanager
    def announced(self, settings: Settings) -> Iterator[None]:
        """Publish the addresses to this user's other commands while the block runs."""
        _write(
            self._folder,
            self._file,
            replace(
                self._note,
                amqp=settings.amqp,
                redis=settings.redis,
                management=settings.management,
            ),
        )
        try:
            yield
        finally:
            _write(self._folder, self._file, replace(self._note, ending=True))


@contextmanager
def claimed(
    topology: str,
    queues: tuple[str, ...] = (),
    at: str = "",
    is_ending: Callable[[RunNote], bool] = lambda note: note.ending,
) -> Iterator[Claim]:
    """Be the only run of this topology on this machine during the block.

    ``at`` names the servers; empty for private ones. If another run exists, waits while
    ``is_ending`` says that it ends, at most a minute, and raises UsageError otherwise. Raises
    ConfigError if other users can enter the folder of the notes.
    """
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", topology)[:_READABLE]
    digest = hashlib.sha256(f"{topology}\0{at}".encode()).hexdigest()[:12]
    prefix = f"run-{readable}-{digest}"
    # The pid makes it the file of this run alone: the guard of its servers removes it when the run
    # is killed, perhaps after the next run has begun.
    file = f"{prefix}-{os.getpid()}.json"
    note = RunNote(
        topology=topology,
        queues=queues,
        pid=os.getpid(),
        started=_started(os.getpid()) or 0,
        private=not at,
    )
    with _folder(make=True) as folder:
        _wait_and_take(folder, prefix, file, note, is_ending)
        try:
            yield Claim(folder, file, note)
        finally:
            with suppress(OSError):
                os.unlink(file, dir_fd=folder)


def _wait_and_take(
    folder: int, prefix: str, file: str, note: RunNote, is_ending: Callable[[RunNote], bool]
) -> None:
    until = time.monotonic() + _ENDS_WITHIN_S
    told = False
    while (other := _take(folder, prefix, file, note)) is not None:
        if not is_ending(other) or time.monotonic() > until:
            raise UsageError(
                f"{note.topology} is already running here (process {other.pid}); stop it first, "
                f"with Ctrl-C there or tiercel kill {note.topology}"
            )
        if not told:
            log.info("%s is ending: waiting for that", other, extra={"event": "run_waits"})
        told = True
        time.sleep(_LOOK_S)


def _take(folder: int, prefix: str, file: str, note: RunNote) -> RunNote | None:
    """Write the note and return None; or return the note of the run that has the topology.

    Removes the notes of runs that are gone.
    """
    # Lock the folder until the note is written, so that runs that start together see each other.
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        for name in os.listdir(folder):
            if not name.startswith(prefix):
                continue
            other = _read(folder, name)
            if other is not None and other.lives:
                return other
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
        _write(folder, file, note)
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
    return None


def runs_here() -> list[RunNote]:
    """Return the runs that are alive, sorted by topology.

    Ignores notes in a folder that other users can enter.
    """
    try:
        with _folder(make=False) as folder:
            names = os.listdir(folder)  # noqa: PTH208 - by its descriptor
            found = [_read(folder, name) for name in names if _NAME.fullmatch(name)]
    except (ConfigError, OSError):
        return []
    return sorted(
        (note for note in found if note is not None and note.lives),
        key=lambda note: (note.topology, note.pid),
    )


def _started(pid: int) -> int | None:
    """Return the start time of a process in ticks since boot; None if it does not exist."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *rest = status.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])


def _place() -> Path:
    return runtime_folder() / f"tiercel-{os.getuid()}"


@contextmanager
def _folder(*, make: bool) -> Iterator[int]:
    """Open the folder of this user's notes; the descriptor outlives a replaced path."""
    path = _place()
    try:
        if make:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path) from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise _unusable(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _unusable(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} must be a folder of this user with mode 0700, because it holds passwords: "
        "remove it, or set XDG_RUNTIME_DIR to a folder of yours"
    )


def _write(folder: int, file: str, note: RunNote) -> None:
    temporary = f"{file}.{os.getpid()}"
    # Left behind by a killed process that had our pid.
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as opened:
        opened.write(_NOTE.dump_json(note))
    os.replace(temporary, file, src_dir_fd=folder, dst_dir_fd=folder)


def _read(folder: int, file: str) -> RunNote | None:
    """Return the note; None unless it is a plain file that only this user can access."""
    # Without O_NONBLOCK, opening a pipe of this name would block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(file, flags, dir_fd=folder)) as opened:
            found = os.fstat(opened.fileno())
            alone = found.st_uid == os.getuid() and not found.st_mode & 0o077
            if not stat.S_ISREG(found.st_mode) or not alone:
                return None
            return _NOTE.validate_json(opened.read(_LONGEST))
    except (OSError, ValueError):
        return None


def with_run(
    settings: Settings,
    *,
    run: str | None = None,
    topology: str | None = None,
    queues: Sequence[str] = (),
    others: bool = True,
) -> tuple[Settings, RunNote | None]:
    """Return the settings and, if they name no server, the private run whose addresses they got.

    ``run``, the name of a topology, overrides the rest. Otherwise choose the run of ``topology``
    and, with ``others``, the run with these ``queues`` or the only run. Raises UsageError if
    several are left, or if there is no ``run`` of this name.
    """
    if run is None and (settings.amqp or settings.redis):
        return settings, None
    everything = [
        note for note in runs_here() if note.private and (others or note.topology == topology)
    ]
    ready = [note for note in everything if note.amqp and note.redis]
    found = _meant(ready, run, topology, queues)
    if found is None:
        starting = [note for note in everything if note not in ready]
        if run is not None:
            there = f"there are {', '.join(map(str, ready))}" if ready else "none runs"
            raise UsageError(f"there is no private run of {run!r} here; {there}")
        if not ready and starting:
            raise UsageError(
                f"{', '.join(map(str, starting))} has no servers yet: try again in a moment"
            )
        return settings, None
    return settings.with_services(found.amqp or "", found.redis or "", found.management), found


def _meant(
    runs: Sequence[RunNote], run: str | None, topology: str | None, queues: Sequence[str]
) -> RunNote | None:
    name = run or topology
    named = [note for note in runs if note.topology == name]
    if named or run is not None:
        return named[0] if named else None
    having = [note for note in runs if queues and set(queues) <= set(note.queues)]
    if len(having) == 1:
        return having[0]
    if len(runs) > 1:
        raise UsageError(
            f"several runs have private servers here: {', '.join(map(str, runs))}; "
            + (
                f"none of them is of {topology}"
                if topology is not None
                else "name the topology of one (with --run where queues are named), or the server"
            )
        )
    return runs[0] if runs else None

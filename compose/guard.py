"""Child processes that cannot outlive this process, even if it is killed with SIGKILL.

Each child leads its own session and process group, and has a small companion in that group: a shell
that waits for the end of a pipe whose only writer is this process. When this process ends, however
that happens, the kernel closes the pipe and the companion kills the group. ``PR_SET_PDEATHSIG``
would be shorter, but it follows the *thread* that started the child, and needs code between fork
and exec, which is not safe in a process with threads.

A process forked from this one without exec holds the pipe open too: the companion then waits for
both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

# $1 is a folder to remove after the child, $2 a file to remove before; each may be empty. The rest
# is the command, which keeps the pid of this shell. The companion ignores SIGTERM and its like: it
# must outlive a SIGTERM to the group.
_GUARD = """
exec 3<&0 </dev/null
{
    trap '' HUP INT TERM
    exec >/dev/null 2>&1
    read -r _ <&3
    [ -z "$2" ] || rm -f -- "$2"
    kill -s KILL $$
    [ -z "$1" ] || rm -rf -- "$1"
    kill -s KILL -- -$$
} &
exec 3<&-
shift 2
exec "$@"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Command, environment and output of one child."""

    argv: Sequence[str]
    # The complete environment, which may contain passwords; None: this process's.
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: Path | None = None
    # File to which stdout and stderr are appended; None: inherit both.
    output: Path | None = None
    # Folder that is removed if this process ends without having killed the child.
    scratch: Path | None = None
    # File about the child that is removed when this process ends without having done so.
    note: Path | None = None


class GuardedProcess:
    """One running child. Thread-safe."""

    def __init__(self, launch: Launch) -> None:
        self._lock = threading.Lock()
        self._gone = False
        reader, self._writer = os.pipe()
        try:
            self._process = _spawn(launch, reader)
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    @property
    def pid(self) -> int:
        """The pid of the child, and the id of its process group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the child runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the child; return its exit code, or None after the timeout."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Send SIGTERM to the child alone, which stops its own children."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the whole process group and wait for it.

        Idempotent; call it even if the child has ended by itself: the companion keeps the group id
        from being reused.
        """
        with self._lock:
            if self._gone:
                return
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            os.close(self._writer)
            self._gone = True

    def stop(self, grace_s: float) -> int:
        """Terminate the child, wait at most ``grace_s``, then kill the group.

        Returns the exit code of the child.
        """
        self.terminate()
        self.wait(grace_s)
        self.kill()
        return self._process.wait()


def _spawn(launch: Launch, reader: int) -> subprocess.Popen[bytes]:
    removed = (str(launch.scratch or ""), str(launch.note or ""))
    argv = ["/bin/sh", "-c", _GUARD, "guard", *removed, *launch.argv]
    output: IO[bytes] | None = None
    try:
        if launch.output is not None:
            output = launch.output.open("ab")
        return subprocess.Popen(  # noqa: S603 - the command contains no user's text
            argv,
            stdin=reader,
            stdout=output,
            stderr=output,
            env=None if launch.env is None else dict(launch.env),
            cwd=launch.cwd,
            start_new_session=True,
        )
    finally:
        if output is not None:
            output.close()

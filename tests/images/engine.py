"""A Docker engine: the running one, else one that we install with apt and start, if possible.

An engine that we start stays: it belongs to the machine, as every Docker engine does, and others
may use it meanwhile.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import time
from pathlib import Path

import docker
from docker.errors import DockerException
from docker.utils import kwargs_from_env

from tiercel.compose.errors import ServiceMissingError, ServiceStartError
from tiercel.compose.install import PLAIN_ENVIRONMENT, install_missing, root_prefix

_SCHEME = "unix://"
_SOCKET = f"{_SCHEME}/var/run/docker.sock"
LOG = Path("/var/log/tiercel-dockerd.log")

_READY_TIMEOUT_S = 60.0
_PROBE_INTERVAL_S = 0.2
_LOG_LINES = 8
_NO_RIGHT = "a Docker engine runs, but this user may not use it; add the user to the group docker"
# Without systemd the daemon is detached by hand. Write access to its socket means root, so the
# socket is given to the group of the calling user only if no other user is in it; otherwise to the
# group docker, as Debian does. A machine that was switched off leaves files with the daemons'
# process ids; once another process has such an id, dockerd refuses to start.
_START = """
if [ -d /run/systemd/system ]; then exec systemctl start docker.service; fi
for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
    case "$file" in *containerd.pid) name=containerd;; *) name=dockerd;; esac
    id=$(cat "$file" 2>/dev/null) || continue
    [ "$(cat "/proc/$id/comm" 2>/dev/null)" = "$name" ] || rm -f "$file"
done
setsid dockerd ${1:+--group "$1"} </dev/null >"$2" 2>&1 &
"""


def engine() -> docker.DockerClient:
    """Return a client of a Docker engine, which the caller closes.

    Raises ServiceMissingError if there is none and none can be started from here, ServiceStartError
    if it does not come up.
    """
    client = _answering()
    if client is not None:
        return client
    if isinstance(_refusal(), PermissionError):
        raise ServiceMissingError(_NO_RIGHT)
    prefix = root_prefix()
    if prefix is None:
        raise ServiceMissingError(
            "no Docker engine answers; install and start one: sudo apt-get install docker.io"
        )
    install_missing("docker")
    return _started(prefix)


def _answering() -> docker.DockerClient | None:
    # Checked first, because the client leaves a refused connection's socket to the garbage
    # collector, which warns of it.
    if _refusal() is not None:
        return None
    try:
        return docker.from_env()
    except DockerException:
        return None


def _refusal() -> OSError | None:
    """Return the error that keeps this process from the engine's socket.

    Returns None too if the engine has no socket here.
    """
    host = kwargs_from_env().get("base_url", _SOCKET)
    if not host.startswith(_SCHEME):
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(host.removeprefix(_SCHEME))
        except OSError as error:
            return error
    return None


def _started(prefix: tuple[str, ...]) -> docker.DockerClient:
    command = [*prefix, "/bin/sh", "-c", _START, "start", private_group() or "", str(LOG)]
    done = subprocess.run(
        command,
        env=PLAIN_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode == 0:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline:
            client = _answering()
            if client is not None:
                return client
            time.sleep(_PROBE_INTERVAL_S)
        if isinstance(_refusal(), PermissionError):
            raise ServiceMissingError(_NO_RIGHT)
    said = done.stderr.decode(errors="replace") + _log_tail()
    raise ServiceStartError(f"the Docker engine did not start; its last lines:\n{said}")


def private_group() -> str | None:
    """Return the user's primary group if it is the user's alone, and has the user's name.

    Returns None if others are or may be in it.

    An empty list of members proves nothing if users are in a directory that does not list them;
    hence the check of the name.
    """
    try:
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return None
    others = {each.pw_name for each in pwd.getpwall() if each.pw_gid == group.gr_gid} | set(
        group.gr_mem
    )
    return group.gr_name if group.gr_name == user.pw_name and others <= {user.pw_name} else None


def _log_tail() -> str:
    try:
        lines = LOG.read_text(errors="replace").splitlines()
    except OSError:
        return f"  (no log in {LOG})"
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])

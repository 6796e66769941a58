"""Finds the programs that tiercel needs, and installs missing ones with apt.

Standard library only: ``make`` runs it with the system's Python, before anything is installed:

    python3 -m tiercel.compose rabbitmq-server redis-server java python-venv
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tiercel.compose.errors import ServiceMissingError

# The environment of our servers, without the user's settings, which may be for other servers.
PLAIN_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
_RABBITMQ_PLACES = (
    "usr/lib/rabbitmq/bin/rabbitmq-server",
    "opt/rabbitmq/sbin/rabbitmq-server",
    "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",
)
_JAVA_AT_LEAST = 17


def main(things: Sequence[str]) -> int:
    """Run the command line: install missing programs."""
    unknown = [thing for thing in things if thing not in _FINDERS]
    try:
        if unknown:
            raise ServiceMissingError(f"unknown: {' '.join(unknown)}; known: {' '.join(_FINDERS)}")  # noqa: TRY301
        install_missing(*things)
    except ServiceMissingError as error:
        print(f"tiercel: {error}", file=sys.stderr)  # noqa: T201 - output of the command
        return 2
    return 0


def install_missing(*things: str) -> None:
    """Install missing programs, and say so on stderr.

    Neither starts nor enables the system services of Debian's packages. Raises ServiceMissingError.
    """
    missing = [thing for thing in things if _FINDERS[thing]() is None]
    if not missing:
        return
    apt = Apt.find()
    if apt is None:
        raise _missing(missing)
    apt.update()
    packages = [apt.first_known(_PACKAGES[thing]) for thing in missing]
    print(f"tiercel: installing with apt: {' '.join(packages)}", file=sys.stderr, flush=True)  # noqa: T201 - also runs before logging
    apt.install(packages)
    still = [thing for thing in missing if _FINDERS[thing]() is None]
    if still:
        raise _missing(still)


def require(thing: str, find: Callable[[], Path | None]) -> Path:
    """Return the result of ``find``. Raises ServiceMissingError if it is None."""
    found = find()
    if found is None:
        raise _missing([thing])
    return found


def _missing(things: Sequence[str]) -> ServiceMissingError:
    packages = " ".join(_PACKAGES[thing][0] for thing in things)
    return ServiceMissingError(
        f"{' and '.join(things)} not found; install with: sudo apt-get install {packages}"
    )


def find_rabbitmq() -> Path | None:
    """Find the broker's own start script, not Debian's wrapper in /usr/sbin."""
    for pattern in _RABBITMQ_PLACES:
        for place in sorted(Path("/").glob(pattern), reverse=True):
            return place
    on_path = shutil.which("rabbitmq-server")
    if on_path is None or Path(on_path).resolve().name == "rabbitmq-script-wrapper":
        return None
    return Path(on_path)


def find_redis() -> Path | None:
    """Find redis-server or valkey-server, which works too."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name) or shutil.which(name, path=PLAIN_ENVIRONMENT["PATH"])
        if found is not None:
            return Path(found)
    return None


def find_postgres() -> Path | None:
    """Find the newest server program, which Debian leaves off the PATH."""
    places = Path("/").glob("usr/lib/postgresql/*/bin/postgres")
    newest = max(places, key=lambda path: float(path.parent.parent.name), default=None)
    if newest is not None:
        return newest
    found = shutil.which("postgres")
    return Path(found) if found is not None else None


def find_java() -> Path | None:
    """Find a Java new enough for Spark."""
    found = shutil.which("java")
    if found is None:
        return None
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - found on PATH
    version = re.search(r'version "(\d+)', answer.stderr)
    return Path(found) if version is not None and int(version[1]) >= _JAVA_AT_LEAST else None


def find_venv() -> Path | None:
    """Find the modules for virtual environments, which Debian packages separately."""
    return Path(sys.executable) if find_spec("venv") and find_spec("ensurepip") else None


def find_system_program(name: str) -> Path | None:
    """Find a system program, whose folder may be missing from a user's PATH."""
    found = shutil.which(name, path=PLAIN_ENVIRONMENT["PATH"])
    return Path(found) if found is not None else None


_FINDERS: dict[str, Callable[[], Path | None]] = {
    "rabbitmq-server": find_rabbitmq,
    "redis-server": find_redis,
    "postgresql": find_postgres,
    "java": find_java,
    "python-venv": find_venv,
    "docker": lambda: find_system_program("dockerd"),
    "debootstrap": lambda: find_system_program("debootstrap"),
    "openssl": lambda: find_system_program("openssl"),
    "chromium": lambda: find_system_program("chromium"),
    "prometheus": lambda: find_system_program("promtool"),
    "docker-compose": lambda: find_system_program("docker-compose"),
}
# The Debian packages that provide each program; the first one in the release is installed.
_PACKAGES: dict[str, tuple[str, ...]] = {
    "rabbitmq-server": ("rabbitmq-server",),
    "redis-server": ("redis-server", "valkey-server"),
    "postgresql": ("postgresql",),
    "java": ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"),
    "python-venv": (
        f"python{sys.version_info.major}.{sys.version_info.minor}-venv",
        "python3-venv",
    ),
    "docker": ("docker.io",),
    "debootstrap": ("debootstrap",),
    "openssl": ("openssl",),
    "chromium": ("chromium",),
    "prometheus": ("prometheus",),
    "docker-compose": ("docker-compose",),
}
# Debian starts the system service of every server package that it installs. A policy script that
# refuses (exit 101) is the documented way to prevent that; an administrator's policy stays. Where
# systemd runs, the units are disabled too, or they would start at the next boot. Packages that were
# installed before are not named, so they are not touched.
#
# Our policy is removed at the end. A SIGKILL leaves no time for that, so the policy refuses only
# while the process that wrote it lives (identified by pid and start time), and otherwise removes
# itself when called; the next installation overwrites it.
_INSTALL = """
policy=$1
shift
mark='# Written by tiercel while it installs packages.'
made=
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
trap 'exit 130' INT TERM HUP
if [ ! -e "$policy" ] || [ "$(sed -n 2p "$policy")" = "$mark" ]; then
    made=yes
    rm -f "$policy"
    {
        printf '#!/bin/sh\\n%s\\n' "$mark"
        printf '[ "$(cut -d " " -f 22 /proc/%s/stat 2>/dev/null)" != %s ] || exit 101\\n' \\
            $$ "$(cut -d ' ' -f 22 /proc/$$/stat)"
        printf 'rm -f "$0"\\n'
    } > "$policy"
    chmod 755 "$policy"
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \\
    -o DPkg::Lock::Timeout=300 "$@" || exit 1
if [ -d /run/systemd/system ]; then
    for package in "$@"; do
        case $package in
            *-server|prometheus) systemctl --quiet disable "$package.service" 2>/dev/null || true ;;
        esac
    done
fi
"""
_POLICY = "/usr/sbin/policy-rc.d"
_SHOWN_LINES = 8


@dataclass(frozen=True, slots=True)
class Apt:
    """apt, run as root or by a sudo without a password."""

    prefix: tuple[str, ...]

    @classmethod
    def find(cls) -> Self | None:
        """Return apt; None if it is missing or may not be used."""
        prefix = root_prefix()
        return None if shutil.which("apt-get") is None or prefix is None else cls(prefix)

    def update(self) -> None:
        """Refresh the package lists; ignore failing sources, because another may suffice."""
        _run((*self.prefix, "apt-get", "update", "-q", "-o", "DPkg::Lock::Timeout=300"))

    def first_known(self, packages: Sequence[str]) -> str:
        """Return the first of ``packages`` that exists in this release."""
        for package in packages:
            policy = _run(("env", "LC_ALL=C", "apt-cache", "policy", package)).stdout
            if "Candidate:" in policy and "Candidate: (none)" not in policy:
                return package
        raise ServiceMissingError(
            f"apt knows no package {' or '.join(packages)}; add a package source that has it"
        )

    def install(self, packages: Sequence[str]) -> None:
        """Install packages without starting their services.

        Raises ServiceMissingError with apt's last lines.
        """
        done = _run((*self.prefix, "sh", "-c", _INSTALL, "install", _POLICY, *packages))
        if done.returncode != 0:
            last = "\n".join(
                f"  {line}"
                for line in (done.stdout + done.stderr).strip().splitlines()[-_SHOWN_LINES:]
            )
            raise ServiceMissingError(
                f"could not install {' '.join(packages)} with apt; its last lines:\n{last}"
            )


def root_prefix() -> tuple[str, ...] | None:
    """Return the prefix that runs a command as root: empty, or a sudo without a password.

    Returns None if neither works.
    """
    if os.geteuid() == 0:
        return ()
    sudo = shutil.which("sudo")
    return (sudo, "-n") if sudo is not None and _run((sudo, "-n", "true")).returncode == 0 else None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - these commands contain no user's text
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )

"""apt, as root or by a sudo that asks for no password."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tiercel.compose.errors import ServiceMissingError

# Debian starts the system service of every server package that it installs. A policy that says no
# (exit 101) is the documented way to prevent that; one that is already there is the
# administrator's, and stays. Where systemd runs, the units are disabled too, or they would start at
# the next boot. Packages that were here before are not named, hence not touched.
#
# Ours is taken away at the end. A SIGKILL leaves no time for that, so it says no only while the
# process that wrote it lives (by its number and the time at which it began), and takes itself away
# when it is asked later; the next one writes over it.
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
    """A working way to install packages."""

    prefix: tuple[str, ...]

    @classmethod
    def find(cls) -> Self | None:
        """None if there is no apt, or no right to use it."""
        prefix = root_prefix()
        return None if shutil.which("apt-get") is None or prefix is None else cls(prefix)

    def update(self) -> None:
        """Refresh the package lists. A source that fails is no matter: the one we need may work."""
        _run((*self.prefix, "apt-get", "update", "-q", "-o", "DPkg::Lock::Timeout=300"))

    def first_known(self, packages: Sequence[str]) -> str:
        """The first of ``packages`` that this release has."""
        for package in packages:
            policy = _run(("env", "LC_ALL=C", "apt-cache", "policy", package)).stdout
            if "Candidate:" in policy and "Candidate: (none)" not in policy:
                return package
        raise ServiceMissingError(
            f"apt knows no package {' or '.join(packages)}; add a package source that has it"
        )

    def debian_mirror(self) -> str:
        """The URL of the Debian mirror that this machine's apt uses.

        Raises ServiceMissingError if it uses none.
        """
        form = "$(ORIGIN) $(LABEL) $(SITE)"
        targets = _run(("apt-get", "indextargets", "--format", form, "Created-By: Packages")).stdout
        for target in targets.splitlines():
            origin, _, rest = target.partition(" ")
            label, _, site = rest.partition(" ")
            if (origin, label) == ("Debian", "Debian") and site.startswith(("http://", "https://")):
                return site
        raise ServiceMissingError(
            "apt here has no mirror of Debian to build images from; name images that can be pulled"
        )

    def install(self, packages: Sequence[str]) -> None:
        """Install, without starting what is installed.

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
    """Return the prefix that runs a command as root; None if there is no way.

    Nothing, or a sudo that asks for no password.
    """
    if os.geteuid() == 0:
        return ()
    sudo = shutil.which("sudo")
    return (sudo, "-n") if sudo is not None and _run((sudo, "-n", "true")).returncode == 0 else None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the words of these commands are ours
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )

"""A release of Debian with some packages, bootstrapped from this machine's own mirror into a
container image.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import docker
from docker.errors import ImageNotFound

from tiercel.compose.errors import ServiceMissingError, ServiceStartError
from tiercel.compose.install import PLAIN_ENVIRONMENT, Apt, install_missing

_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_SHOWN_LINES = 8
# Writes the image as tar to stdout, and everything else to stderr. /proc may still be mounted below
# it if it failed.
_BOOTSTRAP = """
set -eu
umask 022
work=$(mktemp -d /var/tmp/tiercel-debian-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM HUP
debootstrap --force-check-gpg --variant=minbase --include="$2" "$1" "$work/root" "$3" "$4" >&2
tar -C "$work/root" --numeric-owner -c \\
    --exclude=./var/cache/apt/archives --exclude=./var/lib/apt/lists \\
    --exclude=./var/log/bootstrap.log \\
    --exclude=./usr/share/doc --exclude=./usr/share/locale --exclude=./usr/share/man .
"""


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release, and the packages installed besides its minimal base."""

    suite: str
    packages: tuple[str, ...]

    @property
    def tag(self) -> str:
        """Return the image's name, with a digest of everything in it except the age of the
        packages.
        """
        recipe = repr((self.suite, self.packages, _BOOTSTRAP))
        return f"tiercel-debian:{self.suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def release_image(client: docker.DockerClient, release: Release) -> str:
    """Return the tag of the release's image, which is built in a minute if it is missing.

    Raises ServiceMissingError if debootstrap or a mirror is missing, ServiceStartError with its
    last lines if it fails.
    """
    try:
        client.images.get(release.tag)
    except ImageNotFound:
        # /tmp may be in memory, and this is large
        with tempfile.NamedTemporaryFile(dir="/var/tmp") as packed:
            _bootstrap(release, packed)
            repository, _, tag = release.tag.partition(":")
            client.api.import_image_from_file(packed.name, repository=repository, tag=tag)
    return release.tag


def version_of(client: docker.DockerClient, release: Release, package: str) -> str:
    """Return the upstream version of ``package`` in the release's image."""
    words = ["dpkg-query", "-W", "-f", "${source:Upstream-Version}", package]
    container = client.containers.run(release.tag, words, detach=True, network_mode="none")
    try:
        # before its output is read, which may be empty if the container is just ending
        container.wait()
        answer: bytes = container.logs(stderr=False)
    finally:
        container.remove(force=True)
    return answer.decode().rpartition(":")[2]


def debian_mirror() -> str:
    """Return the URL of the Debian mirror used by this machine's apt.

    Raises ServiceMissingError if it uses none.
    """
    form = "$(ORIGIN) $(LABEL) $(SITE)"
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for target in targets.splitlines():
        origin, _, rest = target.partition(" ")
        label, _, site = rest.partition(" ")
        if (origin, label) == ("Debian", "Debian") and site.startswith(("http://", "https://")):
            return site
    raise ServiceMissingError(
        "apt here has no mirror of Debian to build images from; name images that can be pulled"
    )


def _bootstrap(release: Release, packed: IO[bytes]) -> None:
    install_missing("debootstrap")
    apt = Apt.find()
    if apt is None:
        raise ServiceMissingError(
            "building images of Debian needs apt, and root or a sudo that asks for no password"
        )
    # A release that is newer than debootstrap has no script there; all scripts are links to sid's.
    script = next(path for path in (_SCRIPTS / release.suite, _SCRIPTS / "sid") if path.exists())
    words = [release.suite, ",".join(release.packages), debian_mirror(), str(script)]
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            [*apt.prefix, "/bin/sh", "-c", _BOOTSTRAP, "bootstrap", *words],
            env=PLAIN_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=packed,
            stderr=said,
            check=False,
        )
        if done.returncode != 0:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
            shown = "\n".join(f"  {line}" for line in lines)
            raise ServiceStartError(
                f"could not bootstrap Debian {release.suite}; the last lines:\n{shown}"
            )

"""The commands ``docker`` (with its plugins compose and buildx) and ``docker-compose``, fetched if
missing.

Debian 12 has an engine and ``docker-compose``, version 1, but no plugins; Debian 13's plugins run
there too. They are unpacked into a folder, not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from tests.images.debian import debian_mirror
from tiercel.compose.install import Apt, find_system_program, install_missing

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "docker-cli"
PLUGINS = ("docker-buildx", "docker-compose")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@lru_cache
def docker_environment() -> dict[str, str]:
    """Return an environment where ``docker build`` uses BuildKit, and ``docker compose`` exists."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    if not all(
        answers(["docker", plugin.removeprefix("docker-"), "version"], environment)
        for plugin in PLUGINS
    ):
        if not all((CACHE / "cli-plugins" / plugin).exists() for plugin in PLUGINS):
            fetch(CACHE / "cli-plugins")
        environment["DOCKER_CONFIG"] = str(CACHE)
    return environment


def compose_command(name: str) -> list[str]:
    """Return the words of ``docker compose`` or ``docker-compose``; both exist afterwards."""
    if name == "docker compose":
        return ["docker", "compose"]
    install_missing("docker-compose")
    return [str(find_system_program("docker-compose"))]


def run(*words: str, timeout: float = 120, check: bool = True, **options) -> str:
    """Return a command's stdout; if it fails and must not, raise with its stderr."""
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    assert not check or done.returncode == 0, (
        f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def answers(words: list[str], environment: dict[str, str]) -> bool:
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run(words, env=environment, capture_output=True, check=False).returncode == 0


def fetch(folder: Path) -> None:
    """Unpack Debian 13's plugins; apt checks their signatures.

    Apt's own state and lists are not changed.
    """
    apt = Apt.find()
    assert apt is not None, (
        "there is no docker compose, and no apt to get it with: install Docker's compose and "
        "buildx plugins"
    )
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "lists" / "partial").mkdir(parents=True)
        (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
        (scratch / "sources").write_text(
            f"deb [signed-by={KEYRING}] {debian_mirror()} trixie main\n"
        )
        settings = {
            "Dir::Etc::sourcelist": scratch / "sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": scratch / "lists",
            "Dir::Cache": scratch / "cache",
            "APT::Sandbox::User": "root",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        run("apt-get", *options, "update", timeout=300)
        run("apt-get", *options, "download", *PLUGINS, timeout=300, cwd=scratch)
        for package in scratch.glob("*.deb"):
            run("dpkg-deb", "-x", str(package), str(scratch / "root"))
        folder.mkdir(parents=True, exist_ok=True)
        for plugin in PLUGINS:
            shutil.copy(scratch / "root/usr/libexec/docker/cli-plugins" / plugin, folder)

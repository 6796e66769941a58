"""The stack of compose/docker-compose.yml, run with the users' commands."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Self

from tests.support import containers
from tests.support.docker_cli import ROOT, compose_command, docker_environment, run
from tests.support.waiting import wait_until
from tiercel.compose.server import LOOPBACK, free_port

FILE = ROOT / "compose" / "docker-compose.yml"
ROLES = "/run/tiercel/roles"
CREDENTIALS = "/run/tiercel/credentials"
PORTS = (
    "RABBITMQ_PORT",
    "RABBITMQ_MANAGEMENT_PORT",
    "REDIS_PORT",
    "SPARK_UI_PORT",
    "MONITOR_PORT",
    "PROMETHEUS_PORT",
)


class Stack:
    """One project, of the package's compose file or of a similar one.

    Its containers, networks and volumes are removed when the ``with`` block ends.
    """

    def __init__(self, client, command: str, *, file: Path = FILE, **settings: str) -> None:
        """``command`` is ``docker compose`` or ``docker-compose``; ``settings`` are the file's
        variables.
        """
        self._client = client
        self._command = command
        self._file = file
        self.project = f"tiercel-test-{secrets.token_hex(4)}"
        ports = {name: str(free_port(containers.PORTS)) for name in PORTS}
        # This shell's settings for tiercel do not apply to the stack.
        around = {
            name: value
            for name, value in docker_environment().items()
            if not name.startswith(("TIERCEL_", "SPARK_"))
        }
        self.settings = {**ports, **settings}
        self._environment = {**around, **self.settings}
        self._secrets: dict[tuple[str, str], str] = {}

    def compose(self, *words: str, timeout: float = 300, check: bool = True, **options) -> str:
        command = [
            *compose_command(self._command),
            "-p",
            self.project,
            "-f",
            str(self._file),
            *words,
        ]
        return run(*command, timeout=timeout, check=check, env=self._environment, **options)

    def up(self, *services: str, profile: str | None = None, **scale: int) -> None:
        profiles = ["--profile", profile] if profile else []
        scales = [
            word
            for service, number in scale.items()
            for word in ("--scale", f"{service.replace('_', '-')}={number}")
        ]
        self.compose(*profiles, "up", "-d", "--no-build", "--no-recreate", *scales, *services)

    def tiercel(self, *words: str, timeout: float = 120) -> str:
        """Return the output of a command, run in the stack."""
        return self.compose("exec", "-T", "monitor", "tiercel", *words, timeout=timeout, stdin=None)

    def secret(self, name: str, role: str = "monitor") -> str:
        """Return one of the secret files generated for this role."""
        if (role, name) not in self._secrets:
            command = [
                "run",
                "--rm",
                "--no-deps",
                "-T",
                "credentials",
                "cat",
                f"{ROLES}/{role}/{name}",
            ]
            self._secrets[role, name] = self.compose(*command)
        return self._secrets[role, name]

    def drawn(self) -> dict[str, str]:
        """Return every generated password and key, by its purpose."""
        spark = dict(line.split() for line in self.secret("spark.conf", "spark").splitlines())
        return {
            "rabbitmq": self.secret("tiercel_amqp").split(":")[2].split("@")[0],
            "redis": self.secret("tiercel_redis").split(":")[2].split("@")[0],
            "management": self.secret("tiercel_management").split(":")[2].split("@")[0],
            "token": self.secret("tiercel_token"),
            "grafana": self.secret("grafana_password", "grafana"),
            "cookie": self.secret("erlang_cookie", "rabbitmq"),
            "spark": spark["spark.authenticate.secret"],
        }

    @property
    def amqp_url(self) -> str:
        """Return the broker's URL for this machine."""
        return self.secret("tiercel_amqp").replace(
            "rabbitmq:5672", f"{LOOPBACK}:{self.settings['RABBITMQ_PORT']}"
        )

    @property
    def redis_url(self) -> str:
        return self.secret("tiercel_redis").replace(
            "redis:6379", f"{LOOPBACK}:{self.settings['REDIS_PORT']}"
        )

    def containers(self, service: str | None = None) -> list:
        """Return the containers, including ended ones."""
        labels = [f"com.docker.compose.project={self.project}"]
        labels += [f"com.docker.compose.service={service}"] if service else []
        found = self._client.containers.list(all=True, filters={"label": labels})
        for container in found:
            container.reload()
        return found

    def health(self) -> dict[str, str]:
        """Return each container's health, or how it ended."""
        states = {container.name: container.attrs["State"] for container in self.containers()}
        return {
            name: state.get("Health", {}).get("Status", state["Status"])
            for name, state in states.items()
        }

    def wait_until_healthy(self, timeout: float = 600) -> None:
        """Wait for all containers but the one that has finished its job."""
        wait_until(
            lambda: set(self.health().values()) <= {"healthy", "exited"},
            timeout,
            "healthy containers",
        )

    def kill_inside(self, container, marker: str) -> None:
        """Send SIGKILL to the container's processes whose command line has ``marker``, but not to
        its first process, which others kill.
        """
        kill = (
            '[ $p = /proc/1 ] || [ $p = /proc/$$ ] || { grep -q "$0" $p/cmdline && kill '
            "-9 ${p#/proc/}; }"
        )
        script = f"for p in /proc/[0-9]*; do {kill}; done"
        container.exec_run(["bash", "-c", script, marker])

    def logs(self, service: str) -> str:
        return "".join(
            container.logs().decode(errors="replace") for container in self.containers(service)
        )

    def leftovers(self) -> list[str]:
        """Return the remains of the project."""
        label = {"label": f"com.docker.compose.project={self.project}"}
        networks = self._client.networks.list(filters=label)
        volumes = self._client.volumes.list(filters=label)
        return [each.name for each in (*self.containers(), *networks, *volumes)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            logs = self.compose("logs", "--no-color", "--tail=40", check=False)
            depths = self.compose(
                "exec", "-T", "monitor", "tiercel", "depths", "--json", check=False
            )
            print(json.dumps(self.health(), indent=1), logs, depths, sep="\n")  # noqa: T201 - pytest shows it where a test fails
        self.compose("--profile", "metrics", "down", "--volumes", "--timeout", "20", timeout=180)


def readable_folder(folder: Path, **files: str) -> str:
    """Return a folder with these modules that a container's user can read."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    folder.chmod(0o755)
    return os.fspath(folder)

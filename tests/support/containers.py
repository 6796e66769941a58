"""RabbitMQ, Redis and Valkey in containers, with the interface of the embedded servers, so that
tests need not care.

Testcontainers creates, waits and removes. Each container runs as an ordinary user. Its ports are
only on the loopback interface and stay the same over restarts. Its password is in a file, because a
command line or an environment would expose it.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from typing import ClassVar, Self

from docker.errors import NotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import WaitStrategy

from tests.images.server_images import ServerVersion
from tests.support.certificates import speaks_tls
from tiercel.compose.embedded import answers_as_rabbitmq, answers_as_redis
from tiercel.compose.server import LOOPBACK, free_port

# The image of the container that cleans up after a killed test run is public, and cannot be pulled
# everywhere.
testcontainers_config.ryuk_disabled = True

# Ports of containers, which get them long before they listen, and cannot draw again: below those
# of embedded servers.
PORTS = range(10_000, 15_000)
_STOP_GRACE_S = 60


class _Answers(WaitStrategy):
    """Waits until the probe succeeds, but not for a container that has ended."""

    def __init__(self, probe) -> None:
        super().__init__()
        self._probe = probe
        self.with_startup_timeout(90).with_poll_interval(0.1).with_transient_exceptions(OSError)

    def wait_until_ready(self, container) -> None:
        if not self._poll(self._probe):
            raise TimeoutError("the server in the container does not answer")


class ContainerServer(ABC):
    """Replaces ``compose.server.EmbeddedServer``, as far as tests use it."""

    # The second one has TLS if the server has a certificate.
    ports: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        server: ServerVersion,
        image: str,
        *,
        extra: str = "",
        files: dict[str, bytes] | None = None,
    ) -> None:
        """``extra`` is added to its configuration, ``files`` of its certificate are put into
        ``/tiercel``.
        """
        self.server = server
        self._image = image
        self.password = secrets.token_urlsafe(24)
        self._extra = extra
        self._files = files or {}
        self._published = {port: free_port(PORTS) for port in self.ports}
        self._container: DockerContainer | None = None

    @abstractmethod
    def _create(self) -> DockerContainer:
        """Create the container, not started, without its ports."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return True if it serves clients now; raise OSError if it cannot be reached."""

    def _serves(self) -> bool:
        return self._answers() and (not self._files or speaks_tls(self.port(self.ports[1])))

    def port(self, inside: int) -> int:
        """The loopback port for a port of the container."""
        return self._published[inside]

    @property
    def running(self) -> bool:
        if self._container is None:
            return False
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        return wrapped.status == "running"

    def start(self) -> Self:
        """Start the container unless it runs, and wait until it serves clients.

        It keeps the data of an earlier run.
        """
        if self._container is None:
            self._container = self._create().waiting_for(_Answers(self._serves))
            self._container.ports = {
                str(inside): (LOOPBACK, outside) for inside, outside in self._published.items()
            }
            for name, content in self._files.items():
                self._container.with_copy_into_container(content, f"/tiercel/{name}", 0o644)
            self._container.start()
        elif not self.running:
            self._container.get_wrapped_container().start()
            _Answers(self._serves).wait_until_ready(self._container)
        return self

    def stop(self) -> None:
        self._wrapped.stop(timeout=_STOP_GRACE_S)

    def kill(self) -> None:
        if self.running:
            self._wrapped.kill()

    def pause(self) -> None:
        self._wrapped.pause()

    def resume(self) -> None:
        self._wrapped.unpause()

    def restart(self, *, keep_data: bool) -> None:
        if keep_data:
            self.stop()
        else:
            self.close()
        self.start()

    def run(self, *command: str) -> str:
        """Run a command in the container, as the server's user."""
        code, output = self._wrapped.exec_run(list(command))
        assert code == 0, output.decode(errors="replace")
        return output.decode()

    @property
    def pid(self) -> int | None:
        """Return the host's process id of the container's first process; None if it is stopped."""
        container = self._container
        if container is None:
            return None
        wrapped = container.get_wrapped_container()
        try:
            wrapped.reload()
        except NotFound:
            return None
        return int(wrapped.attrs["State"]["Pid"]) or None

    def users(self) -> set[str]:
        """Return the names of the users whose processes run in the container."""
        listed = self._wrapped.top(ps_args="-eo pid,uid,args")
        uids = {row[listed["Titles"].index("UID")] for row in listed["Processes"]}
        return {self.run("getent", "passwd", uid).partition(":")[0] for uid in uids}

    def addresses(self) -> set[str]:
        """Return the addresses of the container's ports."""
        self._wrapped.reload()
        return {
            each["HostIp"] for published in self._wrapped.ports.values() for each in published or ()
        }

    def health(self) -> str:
        """Return the status of the container's health check; ``none`` if the image has none."""
        self._wrapped.reload()
        return self._wrapped.attrs["State"].get("Health", {}).get("Status", "none")

    def inspect(self) -> str:
        """Return all that the engine knows about the container."""
        return json.dumps(self._wrapped.attrs)

    def close(self) -> None:
        container = self._container
        self._container = None
        if container is not None:
            container.stop()

    @property
    def _wrapped(self):
        assert self._container is not None, "it was not started"
        return self._container.get_wrapped_container()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_) -> None:
        self.close()


class ContainerRabbitMQ(ContainerServer):
    ports = (5672, 5671, 15672)

    @property
    def url(self) -> str:
        return f"amqp://tiercel:{self.password}@{LOOPBACK}:{self.port(5672)}/%2F"

    @property
    def management_url(self) -> str:
        return f"http://tiercel:{self.password}@{LOOPBACK}:{self.port(15672)}"

    def _create(self) -> DockerContainer:
        settings = {
            "default_user": "tiercel",
            "default_pass": self.password,
            "loopback_users": "none",
            "disk_free_limit.absolute": "50MB",
            "log.console": "true",
            # the limit of 3.10; RabbitMQ 4 takes 16 MiB, and one test sends a byte more
            "max_message_size": "134217728",
            "collect_statistics_interval": "1000",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        container = DockerContainer(self._image, user="rabbitmq")
        container.with_copy_into_container(
            "\n".join([*lines, self._extra, ""]).encode(), "/tiercel/rabbitmq.conf", 0o644
        )
        container.with_env("RABBITMQ_CONFIG_FILE", "/tiercel/rabbitmq.conf")
        # As on the embedded broker: idle schedulers must not spin, and quorum queues report their
        # depths every second.
        erlang = "-rabbit quorum_tick_interval 1000 +sbwt none +sbwtdcpu none +sbwtdio none"
        return container.with_env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", erlang)

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl``, as on an embedded broker."""
        return self.run("rabbitmqctl", "--quiet", *arguments)

    def _answers(self) -> bool:
        return answers_as_rabbitmq(self.port(5672))


class ContainerRedis(ContainerServer):
    """Redis or Valkey.

    It loses all data when it is killed, and keeps them over ``stop`` and ``start``.
    """

    ports = (6379, 6380)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{LOOPBACK}:{self.port(6379)}/0"

    def start(self) -> Self:
        super().start()
        self.run("rm", "-f", "/data/dump.rdb")
        return self

    def _create(self) -> DockerContainer:
        settings = {
            "bind": "* -::*",
            "requirepass": self.password,
            "dir": "/data",
            "save": '""',
            "appendonly": "no",
            "shutdown-on-sigterm": "save force",
            "maxmemory-policy": "noeviction",
        }
        lines = [f"{name} {value}" for name, value in settings.items()]
        container = DockerContainer(self._image, user=self.server.name)
        container.with_command([f"{self.server.name}-server", "/tiercel/redis.conf"])
        return container.with_copy_into_container(
            "\n".join([*lines, self._extra, ""]).encode(), "/tiercel/redis.conf", 0o644
        )

    def _answers(self) -> bool:
        return answers_as_redis(self.port(6379), self.password)

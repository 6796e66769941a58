"""Servers for the tests: embedded ones, or containers of chosen versions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any

from tests.images.engine import engine
from tests.images.server_images import ServerVersion, image_of, server_named
from tests.support.certificates import HOST, Certificate, speaks_tls
from tests.support.containers import ContainerRabbitMQ, ContainerRedis
from tests.support.postgres import EmbeddedPostgres
from tests.support.troubled import Troubled
from tests.support.waiting import wait_until
from tiercel.compose.embedded import NODE, EmbeddedRabbitMQ, EmbeddedRedis
from tiercel.compose.errors import ServiceError
from tiercel.compose.install import PLAIN_ENVIRONMENT, install_missing
from tiercel.compose.server import LOOPBACK, free_port

_INSIDE = "/tiercel"
_CONTROL_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Each call makes one more server, not started: a context manager that starts and removes it.

    With a certificate it also has a ``tls_url``, without options.
    """

    rabbitmq: Callable[..., Any]
    redis: Callable[..., Any]


class TroubledRabbitMQ(Troubled, EmbeddedRabbitMQ):
    """A broker with ``rabbitmqctl``, whose data does not survive ``restart(keep_data=False)``.

    Two surprises. RabbitMQ 3.10 may forget declarations if it is killed within seconds of its first
    start, and writes the table of quorum queues about three seconds late: a queue that was declared
    just before ``kill`` exists afterwards, but does not work. And a passive declare of a quorum
    queue returns the depth applied so far, or 0 if its leader is silent for 250 ms: messages
    requeued just before may be missing.
    """

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl``, as in ``control("list_queues")``; return its output.

        Raises ServiceError with its last line.
        """
        environment = {
            **PLAIN_ENVIRONMENT,
            "HOME": str(self.folder),  # the Erlang cookie is there
            "ERL_FLAGS": f"-dist_listen false -start_epmd false -erl_epmd_port {self._dist_port}",
        }
        done = subprocess.run(
            [self._program.with_name("rabbitmqctl"), "--quiet", "-n", NODE, *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_CONTROL_TIMEOUT_S,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or [
                f"exit code {done.returncode}"
            ]
            raise ServiceError(f"rabbitmqctl {arguments[0]}: {said[-1]}")
        return done.stdout


class TroubledRedis(Troubled, EmbeddedRedis):
    """A server of one test."""


def embedded_rabbitmq(certificate: Certificate | None = None) -> TroubledRabbitMQ:
    install_missing("rabbitmq-server")
    return TroubledRabbitMQ() if certificate is None else _RabbitMQWithTls(certificate)


def embedded_redis(certificate: Certificate | None = None) -> TroubledRedis:
    install_missing("redis-server")
    return TroubledRedis() if certificate is None else _RedisWithTls(certificate)


def embedded_postgres() -> EmbeddedPostgres:
    install_missing("postgresql")
    return EmbeddedPostgres()


EMBEDDED = Servers(rabbitmq=embedded_rabbitmq, redis=embedded_redis)


def in_containers(names: str) -> Servers:
    """Return servers in containers, such as ``rabbitmq:4.3,valkey:9.1``, and get their images.

    Kinds that are not named are embedded.

    ``RABBITMQ_IMAGE``, ``REDIS_IMAGE`` and ``VALKEY_IMAGE`` replace the official images. Raises
    ServiceError.
    """
    made: dict[str, Callable[..., Any]] = {}
    with closing(engine()) as client:
        for server in map(server_named, names.split(",")):
            image = image_of(client, server, os.environ.get(f"{server.name.upper()}_IMAGE"))
            if server.name == "rabbitmq":
                made["rabbitmq"] = partial(_container_rabbitmq, server, image)
            else:
                made["redis"] = partial(_container_redis, server, image)
    return replace(EMBEDDED, **made)


class _WithTls:
    """An embedded server with one more listener."""

    def __init__(self, certificate: Certificate) -> None:
        super().__init__()
        self._certificate = certificate
        self._tls_port = 0

    def _configure(self) -> None:
        super()._configure()
        self._tls_port = free_port()
        for name, content in self._certificate.files.items():
            (self.folder / name).write_bytes(content)
        with (self.folder / self._config).open("a") as config:
            config.write(self._tls_lines())

    def wait_until_ready(self, stopped: Event | None = None) -> None:
        super().wait_until_ready(stopped)
        wait_until(lambda: speaks_tls(self._tls_port), message="the listener with TLS")

    @property
    def tls_url(self) -> str:
        return _tls(self.url, self._tls_port)


class _RabbitMQWithTls(_WithTls, TroubledRabbitMQ):
    _config = "rabbitmq.conf"

    def _tls_lines(self) -> str:
        return self._certificate.for_rabbitmq(str(self.folder), f"{LOOPBACK}:{self._tls_port}")


class _RedisWithTls(_WithTls, TroubledRedis):
    _config = "redis.conf"

    def _tls_lines(self) -> str:
        return self._certificate.for_redis(str(self.folder), self._tls_port)


def _container_rabbitmq(
    server: ServerVersion, image: str, certificate: Certificate | None = None
) -> ContainerRabbitMQ:
    if certificate is None:
        return ContainerRabbitMQ(server, image)
    made = ContainerRabbitMQ(
        server, image, extra=certificate.for_rabbitmq(_INSIDE, "5671"), files=certificate.files
    )
    made.tls_url = _tls(made.url, made.port(5671))
    return made


def _container_redis(
    server: ServerVersion, image: str, certificate: Certificate | None = None
) -> ContainerRedis:
    if certificate is None:
        return ContainerRedis(server, image)
    made = ContainerRedis(
        server, image, extra=certificate.for_redis(_INSIDE, 6380), files=certificate.files
    )
    made.tls_url = _tls(made.url, made.port(6380))
    return made


def _tls(url: str, port: int) -> str:
    scheme, _, rest = url.partition("://")
    credentials, _, place = rest.rpartition("@")
    return f"{scheme}s://{credentials}@{HOST}:{port}/{place.partition('/')[2]}"

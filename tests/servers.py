"""Which servers the tests run on: embedded ones, or containers of the versions that were chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compose import EmbeddedRabbitMQ, EmbeddedRedis
from compose.images import server_named
from compose.install import install_missing
from tests.containers import ContainerRabbitMQ, ContainerRedis


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Each call makes one more server, not started: a context manager that starts and removes it."""

    rabbitmq: Callable[[], Any]
    redis: Callable[[], Any]


def chosen(names: str) -> Servers:
    """``rabbitmq:4.3,valkey:9.1``: containers; what is not named is embedded."""
    made: dict[str, Callable[[], Any]] = {"rabbitmq": _embedded_rabbitmq, "redis": _embedded_redis}
    for name in filter(None, names.split(",")):
        server = server_named(name)
        if server.name == "rabbitmq":
            made["rabbitmq"] = lambda server=server: ContainerRabbitMQ(server)
        else:
            made["redis"] = lambda server=server: ContainerRedis(server)
    return Servers(**made)


def _embedded_rabbitmq() -> EmbeddedRabbitMQ:
    install_missing("rabbitmq-server")
    return EmbeddedRabbitMQ()


def _embedded_redis() -> EmbeddedRedis:
    install_missing("redis-server")
    return EmbeddedRedis()

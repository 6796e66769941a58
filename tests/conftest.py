"""What all tests share: the servers and the waiting. A server that is missing is a failure, never a skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from compose import EmbeddedRabbitMQ, EmbeddedRedis, EmbeddedServices
from compose.install import install_missing
from tests.waiting import wait_until as _wait_until


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-minutes", type=float, default=1, help="how long tests/faults/test_soak.py goes on")
    parser.addoption("--soak-seed", type=int, help="repeats the faults of an earlier soak")


@pytest.fixture(scope="session")
def services() -> Iterator[EmbeddedServices]:
    """One RabbitMQ and one Redis for the whole session. Nobody stops them, and each test uses names of its own."""
    with EmbeddedServices() as running:
        yield running


@pytest.fixture(scope="session")
def amqp_url(services: EmbeddedServices) -> str:
    return services.amqp_url


@pytest.fixture(scope="session")
def redis_url(services: EmbeddedServices) -> str:
    return services.redis_url


@pytest.fixture(scope="session")
def management_url(services: EmbeddedServices) -> str | None:
    return services.management_url


@pytest.fixture
def rabbitmq() -> Iterator[Callable[[], EmbeddedRabbitMQ]]:
    """``rabbitmq()`` is a broker of the test's own, started, to kill and restart as it likes. It takes four seconds."""
    install_missing("rabbitmq-server")
    with ExitStack() as running:
        yield lambda: running.enter_context(EmbeddedRabbitMQ())


@pytest.fixture
def redis() -> Iterator[Callable[[], EmbeddedRedis]]:
    """``redis()`` is a Redis of the test's own, started, to kill, pause and restart as it likes."""
    install_missing("redis-server")
    with ExitStack() as running:
        yield lambda: running.enter_context(EmbeddedRedis())


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """``wait_until(condition, timeout, message)``; also importable from ``tests.waiting``."""
    return _wait_until

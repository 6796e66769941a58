"""Fixtures of the tests with real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from tests.support.broker import CONSUMER_TIMEOUT_S
from tests.support.servers import Servers
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.pool import Pool


@pytest.fixture(scope="module")
def impatient(servers: Servers) -> Iterator[Any]:
    """A broker with a short consumer timeout."""
    with servers.rabbitmq() as server:
        server.control(
            "eval",
            f"application:set_env(rabbit, consumer_timeout, {CONSUMER_TIMEOUT_S * 1000:.0f}),"
            "application:set_env(rabbit, channel_tick_interval, 500).",
        )
        yield server


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A second client beside the code under test."""
    with closing(connect(redis_url)) as made:
        yield made


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the pipelines sent to Redis."""
    sent: list[int] = []
    send = Pool.exchange

    def exchange(pool: Pool, commands: Any) -> list[Any]:
        sent.append(len(commands))
        return send(pool, commands)

    monkeypatch.setattr(Pool, "exchange", exchange)
    return sent

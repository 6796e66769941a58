"""Fixtures of the tests of processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.presences import InMemory, InRedis


@pytest.fixture(params=["memory", "redis"])
def seats(request: pytest.FixtureRequest) -> InMemory | InRedis:
    """The seats of a topology, on the memory twin of presence and on Redis."""
    return (
        InMemory() if request.param == "memory" else InRedis(request.getfixturevalue("redis_url"))
    )


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Call it for the messages that were logged."""
    return lambda: [record.getMessage() for record in caplog.records]

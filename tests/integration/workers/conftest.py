"""Fixtures of the tests of processes."""

from __future__ import annotations

import pytest

from tests.support.presences import InMemory, InRedis


@pytest.fixture(params=["memory", "redis"])
def places(request: pytest.FixtureRequest) -> InMemory | InRedis:
    """The places of a topology, on the memory twin of presence and on Redis."""
    return (
        InMemory() if request.param == "memory" else InRedis(request.getfixturevalue("redis_url"))
    )

"""Fixtures of the tests on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from tiercel.acker.connection.client import connect


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A second client beside the code under test."""
    with closing(connect(redis_url)) as made:
        yield made

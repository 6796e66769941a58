"""Ledgers for the contract suite."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Ledger, OutcomeFeed
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.redis_ledger import RedisLedger

OWNERS = 3


@pytest.fixture
def make_spec(redis_url: str) -> Callable[..., LedgerSpec]:
    """``make_spec(shards=…, message_timeout=…)``: a ledger with its own name on the session's
    server.
    """

    def make(**changed) -> LedgerSpec:
        settings = {
            "topology": f"ledger-{uuid.uuid4().hex}",
            "urls": (redis_url,),
            "shards": 1,
            "owners": OWNERS,
            "message_timeout": timedelta(seconds=30),
        }
        return LedgerSpec(**{**settings, **changed})

    return make


def _place(request: pytest.FixtureRequest) -> dict[str, Any]:
    if "cluster" in request.param:
        return {"shards": 3, "urls": (request.getfixturevalue("clustered_redis").url,)}
    return {"shards": 3 if "three" in request.param else 1}


@pytest.fixture(
    params=["memory", "redis", "redis in three shards", "redis cluster in three shards"]
)
def ledger(request) -> Iterator[Ledger]:
    if request.param == "memory":
        made: Ledger = MemoryLedger(
            LedgerSpec(
                topology="t",
                urls=(),
                shards=1,
                owners=OWNERS,
                message_timeout=timedelta(seconds=30),
            )
        )
    else:
        made = RedisLedger(request.getfixturevalue("make_spec")(**_place(request)))
    yield made
    made.close()


@pytest.fixture
def feed(ledger: Ledger) -> Iterator[OutcomeFeed]:
    """The feed of owner 1."""
    opened = ledger.feed(1)
    yield opened
    opened.close()

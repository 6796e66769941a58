"""Stores for the contract suite."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tiercel.acker.layout import LedgerSpec
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import StateStore

Runs = Callable[[int], StateStore]


@pytest.fixture
def make_spec(redis_url: str) -> Callable[..., LedgerSpec]:
    """``make_spec(shards=…, urls=…)``: a topology with its own name on the session's server."""

    def make(**changed) -> LedgerSpec:
        settings = {
            "topology": f"state-{uuid.uuid4().hex}",
            "urls": (redis_url,),
            "shards": 1,
            "owners": 1,
            "message_timeout": timedelta(seconds=30),
        }
        return LedgerSpec(**{**settings, **changed})

    return make


@pytest.fixture(
    params=["memory", "redis", "redis in three shards", "redis cluster in three shards"]
)
def run(request) -> Iterator[Runs]:
    """``run(run_number)``: the store as seen by the run of that number.

    All runs of one test see the same entries.
    """
    made: list[StateStore] = []
    if request.param == "memory":
        first = MemoryStateStore()

        def make(run_number: int) -> StateStore:
            return MemoryStateStore(run_number, beneath=first)
    else:
        where = (
            {"urls": (request.getfixturevalue("clustered_redis").url,)}
            if "cluster" in request.param
            else {}
        )
        spec = request.getfixturevalue("make_spec")(
            shards=3 if "three" in request.param else 1, **where
        )

        def make(run_number: int) -> StateStore:
            made.append(RedisStateStore(spec, run_number))
            return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(run: Runs) -> StateStore:
    return run(1)

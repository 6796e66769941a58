"""Every test here runs on both engines: in memory, and on Spark and Redis.

In memory it runs again with each BasicBolt as an AsyncBolt, with threads, and as a BatchBolt. With
the first two, many tuples are under way at once, and nothing else differs.
"""

from functools import partial

import pytest

from tests.support.kinds import with_kind
from tiercel.testing import StartCluster


@pytest.fixture(params=["memory", "spark"])
def cluster_of_basic(request: pytest.FixtureRequest, local_cluster: StartCluster) -> StartCluster:
    """``cluster_of`` for tests that need tuples to be executed one at a time."""
    return partial(local_cluster, engine=request.param)


@pytest.fixture(params=["memory", "memory-async", "memory-threads", "memory-batches", "spark"])
def cluster_of(request: pytest.FixtureRequest, local_cluster: StartCluster) -> StartCluster:
    """``cluster_of(topology, config)`` is a running cluster."""
    engine, _, kind = request.param.partition("-")

    def start(topology, *arguments, **settings):
        changed = with_kind(topology, kind) if kind else topology
        return local_cluster(changed, *arguments, engine=engine, **settings)

    return start

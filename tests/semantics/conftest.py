"""Every test here runs on both engines: in memory, and on Spark and Redis."""

from functools import partial

import pytest

from tiercel.workers.testing.plugin import StartCluster


@pytest.fixture(params=["memory", "spark"])
def cluster_of(request: pytest.FixtureRequest, local_cluster: StartCluster) -> StartCluster:
    """``cluster_of(topology, config)`` is a running cluster."""
    return partial(local_cluster, engine=request.param)

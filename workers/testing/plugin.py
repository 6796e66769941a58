"""The kit as a pytest plugin, active once tiercel is installed: the fixture ``local_cluster`` and
the option ``--tiercel-engine``.

Every pytest in such an environment loads it, so it imports the kit only for a test that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tiercel.spark_jobs.topology.config import Config
    from tiercel.spark_jobs.topology.graph import Topology
    from tiercel.workers.testing.cluster import LocalCluster, StartCluster

# As in ``EngineName``.
ENGINES = ("memory", "spark")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the engine: memory while writing code, spark before deploying."""
    parser.getgroup("tiercel").addoption(
        "--tiercel-engine",
        choices=ENGINES,
        default="memory",
        help=("engine of local_cluster in tests that do not choose one: memory (default) or spark"),
    )


@pytest.fixture
def local_cluster(request: pytest.FixtureRequest) -> Iterator[StartCluster]:
    """Start clusters, ``local_cluster(topology)``, which are closed when the test ends."""
    from tiercel.workers.testing.cluster import LocalCluster  # noqa: PLC0415 - it takes a second

    with ExitStack() as running:

        def start(topology: Topology, config: Config | None = None, **options: Any) -> LocalCluster:
            options = {"engine": request.config.getoption("tiercel_engine"), **options}
            return running.enter_context(LocalCluster(topology, config, **options))

        yield start

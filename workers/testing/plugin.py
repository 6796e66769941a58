"""The kit as a pytest plugin, there as soon as tiercel is installed: ``local_cluster``, and
``--tiercel-engine``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol, get_args

import pytest

from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.cluster import EngineName, LocalCluster


class StartCluster(Protocol):
    """The type of the fixture."""

    def __call__(
        self, topology: Topology, config: Config | None = None, **options: Any
    ) -> LocalCluster:
        """Return a running cluster; parameters and errors are those of ``LocalCluster``."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the user choose the engine of each run: memory while they write, spark before they
    deploy.
    """
    parser.getgroup("tiercel").addoption(
        "--tiercel-engine",
        choices=get_args(EngineName),
        default="memory",
        help=(
            "what local_cluster runs topologies on, where a test does not say it: memory "
            "(default) or spark"
        ),
    )


@pytest.fixture
def local_cluster(request: pytest.FixtureRequest) -> Iterator[StartCluster]:
    """``local_cluster(topology)`` is a running ``LocalCluster``, closed when the test ends."""
    with ExitStack() as running:

        def start(topology: Topology, config: Config | None = None, **options: Any) -> LocalCluster:
            options = {"engine": request.config.getoption("tiercel_engine"), **options}
            return running.enter_context(LocalCluster(topology, config, **options))

        yield start

"""A topology on private servers, which a test may disrupt.

Its bolts leave their effects in a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import EMBEDDED, Servers
from tiercel import WorkQueue, declare_queue
from tiercel.queues.broker.depths import QueueDepth, depths
from tiercel.workers.config import Settings
from tiercel.workers.local.run import LocalRun


@dataclass(frozen=True, kw_only=True)
class Running:
    """The topology, its servers, and the folder of its effects."""

    rabbitmq: Any
    redis: Any
    run: LocalRun
    folder: Path

    @property
    def amqp_url(self) -> str:
        return self.rabbitmq.url

    @property
    def redis_url(self) -> str:
        return self.redis.url

    def depths(self, *queues: str) -> list[QueueDepth]:
        """Return the depths, with the figures that only the management interface has."""
        return depths(self.amqp_url, queues, self.rabbitmq.management_url)


@contextmanager
def running(
    topology: str,
    folder: Path,
    variable: str,
    *,
    queues: tuple[str, ...] = (),
    servers: Servers = EMBEDDED,
    master: str = "local[2]",
) -> Iterator[Running]:
    """Run ``topology``, a ``module:function``, by default in Spark's local mode with two cores.

    The environment ``variable`` tells its bolts the ``folder``. ``queues`` are declared before it
    starts.
    """
    module, _, function = topology.partition(":")
    with ExitStack() as exits:
        exits.enter_context(pytest.MonkeyPatch.context()).setenv(variable, str(folder))
        rabbitmq = exits.enter_context(servers.rabbitmq())
        redis = exits.enter_context(servers.redis())
        for queue in queues:
            declare_queue(rabbitmq.url, WorkQueue(name=queue))
        settings = Settings.load(master=master).with_services(
            rabbitmq.url, redis.url, rabbitmq.management_url
        )
        run = exits.enter_context(
            LocalRun(topology, getattr(import_module(module), function)(), settings)
        )
        yield Running(rabbitmq=rabbitmq, redis=redis, run=run, folder=folder)

"""All embedded services together, as the local runner, the demo and the tests want them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

from tiercel.compose.install import install_missing
from tiercel.compose.rabbitmq import EmbeddedRabbitMQ
from tiercel.compose.redis_server import EmbeddedRedis


class EmbeddedServices:
    """A private RabbitMQ and a private Redis.

    For as long as the ``with`` block runs, or this process.

    Programs that are missing are installed with apt where that is possible. Raises
    ServiceMissingError, ServiceStartError.
    """

    def __init__(self, kept: Path | None = None, stopped: threading.Event | None = None) -> None:
        """``kept`` is a folder for the data of both, which a later start goes on with.

        ``stopped`` breaks the start off: it raises ServiceStoppedError.
        """
        install_missing("rabbitmq-server", "redis-server")
        self.rabbitmq = EmbeddedRabbitMQ(kept and kept / "rabbitmq")
        self.redis = EmbeddedRedis(kept and kept / "redis")
        self._stopped = stopped

    @property
    def amqp_url(self) -> str:
        """Password included: never log it."""
        return self.rabbitmq.url

    @property
    def redis_url(self) -> str:
        """Password included: never log it."""
        return self.redis.url

    @property
    def management_url(self) -> str | None:
        """RabbitMQ's HTTP API, password included: never log it."""
        return self.rabbitmq.management_url

    def start(self) -> Self:
        """Start both side by side and wait until they serve clients."""
        try:
            self.rabbitmq.launch()
            self.redis.launch()
            self.redis.wait_until_ready(self._stopped)
            self.rabbitmq.wait_until_ready(self._stopped)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End both, and remove their folders unless they are kept. Idempotent."""
        self.rabbitmq.close()
        self.redis.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

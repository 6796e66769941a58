"""All embedded services together, as the local runner, the demo and the tests want them."""

from __future__ import annotations

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

    def __init__(self) -> None:
        install_missing("rabbitmq-server", "redis-server")
        self.rabbitmq = EmbeddedRabbitMQ()
        self.redis = EmbeddedRedis()

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
            self.redis.start()
            self.rabbitmq.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill both and remove their folders. Idempotent."""
        self.rabbitmq.close()
        self.redis.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

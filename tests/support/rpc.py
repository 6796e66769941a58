"""A client that sends a request and waits for the reply, as in pika's tutorial."""

from __future__ import annotations

import json
import uuid
from typing import Self

import pika

from tiercel.queues.broker.address import Address


class RpcClient:
    """Sends requests through pika's blocking connection, one at a time."""

    def __init__(self, amqp_url: str, queue: str, *, direct: bool = False) -> None:
        """``direct`` uses RabbitMQ's direct reply-to instead of a queue."""
        self._connection = pika.BlockingConnection(Address.parse(amqp_url).parameters("rpc"))
        self._channel = self._connection.channel()
        self._queue = queue
        self.reply_to = "amq.rabbitmq.reply-to"
        if not direct:
            self.reply_to = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.basic_consume(self.reply_to, self._on_answer, auto_ack=True)
        self._awaited = ""
        self._answer: bytes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, timeout: float = 60, **question):
        """Return the reply to a request; raise TimeoutError."""
        self._answer = None
        self._awaited = str(uuid.uuid4())
        self._channel.basic_publish(
            "",
            self._queue,
            json.dumps(question).encode(),
            pika.BasicProperties(reply_to=self.reply_to, correlation_id=self._awaited),
        )
        self._connection.process_data_events(time_limit=0)
        for _ in range(int(timeout * 10)):
            if self._answer is not None:
                return json.loads(self._answer)
            self._connection.process_data_events(time_limit=0.1)
        raise TimeoutError(f"no answer to {question}")

    def _on_answer(self, _channel, _method, properties, body):
        if properties.correlation_id == self._awaited:
            self._answer = body

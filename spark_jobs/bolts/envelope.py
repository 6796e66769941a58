"""The message of a tuple, but for its body: where it goes, and its properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from tiercel.queues.errors import BadPropertyError
from tiercel.queues.message.writing import OutgoingMessage, write_properties
from tiercel.spark_jobs.bolts.fields import FromField, fields_of, value_of
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.errors import TopologyError

# AMQP has 255, and the dead-letter queue needs five of them.
_QUEUE_BYTES = 250
_NAME_BYTES = 255
_QUEUE = "name of a queue"
_EXCHANGE = "name of an exchange"
_KEY = "routing key"


class SinkProperties(TypedDict, total=False):
    """Properties that a message may be given, each a constant or a ``field``."""

    headers: Any
    message_id: Any
    correlation_id: Any
    reply_to: Any
    content_type: Any
    content_encoding: Any
    type: Any
    app_id: Any
    user_id: Any
    priority: Any
    expiration: Any
    timestamp: Any


class Envelope:
    """Addresses messages as it was told: to a queue, or to an exchange with a routing key."""

    def __init__(
        self,
        *,
        queue: Any,
        exchange: Any,
        routing_key: Any,
        persistent: bool,
        properties: Mapping[str, Any],
    ) -> None:
        """Each is a constant or a ``field``; raises TopologyError for what no message can have."""
        _check_place(queue, exchange, routing_key)
        self.queue = queue
        self.exchange = exchange
        self._routing_key = routing_key
        self._persistent = persistent
        fixed = {name: value for name, value in properties.items() if not any(fields_of(value))}
        try:
            made = write_properties(fixed, persistent=persistent)
        except BadPropertyError as error:
            raise TopologyError(f"QueueSink: {error}") from error
        # As they are written.
        self._fixed = {name: getattr(made, name) for name in fixed}
        self._varying = {
            name: value_of(value) for name, value in properties.items() if name not in fixed
        }
        settings = {"queue": queue, "exchange": exchange, "key": routing_key, **properties}
        # The fields that it takes, which are no part of a body of all fields.
        self.fields = frozenset(fields_of(settings))

    def around(self, tup: Tuple, body: bytes) -> OutgoingMessage:
        """Return the tuple's message; raises ValueError or KeyError for a tuple that has none."""
        exchange, routing_key = self._place(tup)
        values = {name: value(tup) for name, value in self._varying.items()}
        properties = write_properties(values, persistent=self._persistent)
        for name, value in self._fixed.items():
            setattr(properties, name, value)
        key = tup.key
        if key is not None and properties.message_id is None:
            # The same each time that the tuple comes, so that who receives it can tell.
            properties.message_id = key.hex()
        return OutgoingMessage(
            body=body, exchange=exchange, routing_key=routing_key, properties=properties
        )

    def _place(self, tup: Tuple) -> tuple[str, str]:
        if self.exchange is None:
            return "", _name(self.queue, tup, _QUEUE, 1, _QUEUE_BYTES)
        exchange = _name(self.exchange, tup, _EXCHANGE, 0, _NAME_BYTES)
        return exchange, _name(self._routing_key, tup, _KEY, 0, _NAME_BYTES)


def _name(setting: Any, tup: Tuple, what: str, least: int, most: int) -> str:
    if not isinstance(setting, FromField):
        return str(setting)
    name = setting.of(tup)
    if not isinstance(name, str) or not least <= len(name.encode()) <= most:
        raise ValueError(
            f"{setting} holds {name!r:.50}, which is no {what}: use {least} to {most} bytes"
        )
    return name


def _check_place(queue: Any, exchange: Any, routing_key: Any) -> None:
    if queue is None and exchange is None:
        raise TopologyError(
            'QueueSink needs a queue: its name, or field("name") of a field that holds it; or an '
            "exchange and a routing key"
        )
    if queue is not None and exchange is not None:
        raise TopologyError("QueueSink publishes to a queue or to an exchange, not to both")
    if queue is not None and routing_key != "":
        raise TopologyError(
            "QueueSink takes a routing key for an exchange; that of a queue is its name"
        )
    for setting, what, least, most in (
        (queue, _QUEUE, 1, _QUEUE_BYTES),
        (exchange, _EXCHANGE, 0, _NAME_BYTES),
        (routing_key, _KEY, 0, _NAME_BYTES),
    ):
        if setting is None or isinstance(setting, FromField):
            continue
        if not isinstance(setting, str) or not least <= len(setting.encode()) <= most:
            raise TopologyError(
                f"QueueSink: {setting!r:.50} is no {what}: use {least} to {most} bytes"
            )

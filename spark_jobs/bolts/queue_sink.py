"""The built-in sink that publishes each tuple as a message, to a RabbitMQ queue or an exchange.

The envelope of a message has its destination and properties; each setting may be a ``field`` of the
tuple.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from tiercel.queues.broker.declare import (
    WorkQueue,
    declare_exchange,
    declare_queue,
    find_exchange,
)
from tiercel.queues.errors import (
    BadPropertyError,
    BrokerFailedError,
    BrokerUnavailableError,
    QueuesError,
)
from tiercel.queues.message.writing import WRITTEN, OutgoingMessage, write_properties
from tiercel.queues.nouns import did_you_mean
from tiercel.queues.publishing.publisher import Publisher
from tiercel.queues.retry import QUEUE_BYTES, is_broker_name
from tiercel.queues.values.formats import json_body, plain_body
from tiercel.spark_jobs.bolts.bolt import Bolt
from tiercel.spark_jobs.bolts.collecting import OutputCollector, TopologyContext
from tiercel.spark_jobs.bolts.tuples import FromField, Tuple, fields_of, value_of
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.reasons import reason_of
from tiercel.spark_jobs.tracing.process import of_this_process

_LONGEST_PATIENCE_S = 24 * 3600
# Seconds between two calls that restart the timeouts of waiting tuples.
_SAY_S = 1.0
# Most queues and exchanges that a task remembers: clients come and go with queues of their own.
KNOWN = 10_000
# AMQP's limit; a queue's name must leave room for the dead-letter queue's suffix.
_NAME_BYTES = 255
_QUEUE = "name of a queue"
_EXCHANGE = "name of an exchange"
_EXCHANGE_TYPES = ("topic", "direct", "fanout", "headers")
_SETTINGS = (
    *("queue", "exchange", "routing_key", "exchange_type", "body", "fields", "persistent"),
    *("declare", "patience_secs"),
)
# The prefix of names that only RabbitMQ gives, such as the names of clients' reply queues: it
# refuses to declare such a queue, and a dead-letter queue named after it.
_RESERVED = "amq."
# Begins the types of RabbitMQ's plugins, such as x-consistent-hash.
_PLUGIN = "x-"
_KEY = "routing key"


class SinkProperties(TypedDict, total=False):
    """Optional properties of a message, each a constant or a ``field``."""

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
    """Addresses messages to a queue, or to an exchange with a routing key."""

    def __init__(
        self,
        *,
        queue: Any,
        exchange: Any,
        routing_key: Any,
        persistent: bool,
        properties: Mapping[str, Any],
    ) -> None:
        """Each setting is a constant or a ``field``; raises TopologyError for an invalid one."""
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
        # Constants, in the form in which they are sent.
        self._fixed = {name: getattr(made, name) for name in fixed}
        self._varying = {
            name: value_of(value) for name, value in properties.items() if name not in fixed
        }
        settings = {"queue": queue, "exchange": exchange, "key": routing_key, **properties}
        # The fields that it uses, which are left out of a body of all fields.
        self.fields = frozenset(fields_of(settings))

    def around(self, tup: Tuple, body: bytes) -> OutgoingMessage:
        """Return the tuple's message; raises ValueError or KeyError if the tuple is unfit."""
        exchange, routing_key = self._place(tup)
        values = {name: value(tup) for name, value in self._varying.items()}
        properties = write_properties(values, persistent=self._persistent)
        for name, value in self._fixed.items():
            setattr(properties, name, value)
        key = tup.key
        if key is not None and properties.message_id is None:
            # The same at each delivery of the tuple, so that receivers recognise a repeat.
            properties.message_id = key.hex()
        return OutgoingMessage(
            body=body, exchange=exchange, routing_key=routing_key, properties=properties
        )

    def _place(self, tup: Tuple) -> tuple[str, str]:
        if self.exchange is None:
            return "", _name(self.queue, tup, _QUEUE, 1, QUEUE_BYTES)
        exchange = _name(self.exchange, tup, _EXCHANGE, 0, _NAME_BYTES)
        return exchange, _name(self._routing_key, tup, _KEY, 0, _NAME_BYTES)


def _name(setting: Any, tup: Tuple, noun: str, least: int, most: int) -> str:
    if not isinstance(setting, FromField):
        return str(setting)
    name = setting.of(tup)
    if not _is_name(name, noun, least, most):
        raise ValueError(f"{setting} holds {name!r:.50}, which is no {_needed(noun, least, most)}")
    return str(name)


def _is_name(name: object, noun: str, least: int, most: int) -> bool:
    if noun is _KEY:
        return isinstance(name, str) and least <= len(name.encode()) <= most
    return is_broker_name(name, least, most)


def _needed(noun: str, least: int, most: int) -> str:
    end = "" if noun is _KEY else " without line breaks"
    return f"{noun}: use {least} to {most} bytes{end}"


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
            "QueueSink takes a routing key for an exchange only; a queue's routing key is its name"
        )
    for setting, noun, least, most in (
        (queue, _QUEUE, 1, QUEUE_BYTES),
        (exchange, _EXCHANGE, 0, _NAME_BYTES),
        (routing_key, _KEY, 0, _NAME_BYTES),
    ):
        if setting is None or isinstance(setting, FromField):
            continue
        if not _is_name(setting, noun, least, most):
            raise TopologyError(f"QueueSink: {setting!r:.50} is no {_needed(noun, least, most)}")


# An exchange and "", or "" and a queue.
Place = tuple[str, str]


class QueueSink(Bolt):
    """Publishes persistent messages with publisher confirms and ``mandatory``; emits nothing.

    A message goes to ``queue``, or to ``exchange`` with the ``routing_key``. Its body is ``body``
    unchanged, a string or bytes, or else a JSON object of ``fields``, by default of all fields that
    no other setting uses. Its properties are headers (a mapping), message_id, correlation_id,
    reply_to, content_type, content_encoding, type, app_id and user_id (texts), priority (0 to 255),
    expiration (a timedelta, or milliseconds) and timestamp (a datetime). Each setting is either a
    constant or ``field("name")``, the value of that field; with null, the message has no such
    property. With an ``exchange_type`` (topic, direct, fanout, headers, or one of a plugin) a
    missing exchange is declared, durable. An impossible setting raises TopologyError.

    Without a message_id of yours, the key of the tuple (``tup.key``, see
    ``QueueSpout(identity=…)``), if it has one, is the message_id: 32 hexadecimal digits, the same
    at each publication. So the next topology recognises the message:
    ``QueueSpout(…, identity="message_id")``.

    Guarantee: a tuple is acked only after the broker has confirmed its message. It fails, with the
    reason, when the message is returned (no such queue, or an exchange that routes it to no queue)
    or refused (queue full, message too large), or if the broker does not answer for
    ``patience_secs``. During a memory or disk alarm of the broker the task waits, however long. It
    resets the timeouts of its tuples while it waits, and while it declares many queues. So a
    message is in its queue at least once: it may be published again when another part of its tree
    fails. One tuple's failure does not affect the others. The messages of a step are published
    together, in order.
    """

    transient = frozenset({"_amqp_url", "_around", "_known"})
    # Of ``prepare``.
    _amqp_url = ""
    _publisher: Publisher | None = None

    def __init__(  # noqa: PLR0913 - where to, what, and how
        self,
        queue: Any = None,
        *,
        exchange: Any = None,
        routing_key: Any = "",
        exchange_type: str | None = None,
        body: Any = None,
        fields: Sequence[str] = (),
        persistent: bool = True,
        declare: bool = True,
        patience_secs: float = 15.0,
        **properties: Unpack[SinkProperties],
    ) -> None:
        """With ``declare`` a missing queue is declared as a ``QueueSpout`` would declare it, with
        its dead-letter queue, unless its name begins with ``amq.``, which only RabbitMQ gives; an
        existing queue is used as it is. An exchange must exist, or have an ``exchange_type``.
        """
        _check_properties(properties)
        _check_exchange_type(exchange_type, exchange, declare=declare)
        self._envelope = Envelope(
            queue=queue, exchange=exchange, routing_key=routing_key, persistent=persistent,
            properties=properties,
        )  # fmt: skip
        _check_body(body, fields)
        _check_patience(patience_secs)
        self._body = None if body is None else value_of(body)
        self._fields = tuple(fields)
        self._needed_fields = frozenset((*self._envelope.fields, *fields_of(body), *fields))
        self._declare = declare
        self._exchange_type = exchange_type
        self._patience = timedelta(seconds=patience_secs)
        # Queues and exchanges that exist, those last that were used last.
        self._known: OrderedDict[Place, None] = OrderedDict()
        self._held: list[tuple[Tuple, OutgoingMessage]] = []

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Connect in the background, to ``config["amqp_url"]``: the topology's broker, or the one
        in the sink's own settings.

        Raises TopologyError without an address, AddressError for an invalid one.
        """
        self._amqp_url = config.get("amqp_url") or ""
        if not self._amqp_url:
            raise TopologyError(no_address(context.component))
        self._publisher = Publisher(self._amqp_url, self._patience)
        self.carry_traces()

    def carry_traces(self) -> None:
        """Have messages carry their trace in their headers, if this process records traces."""
        tracing = of_this_process()
        around = self._envelope.around
        self._around = around if tracing is None else tracing.carried(around)

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Keep the tuple until ``flush``; a tuple that makes no valid message fails here.

        A tick publishes nothing.
        """
        if tup.is_tick:
            collector.ack(tup)
            return
        self._held.append((tup, self._around(tup, self._body_of(tup))))

    def flush(self, collector: OutputCollector) -> None:
        """Publish, wait for the confirms, and ack or fail each tuple."""
        held = self.take_held()
        if not held:
            return
        reported = set()
        on_wait = _reset_timeouts([tup for tup, _ in held], collector)
        fates = self._publish([message for _, message in held], on_wait)
        for (tup, message), error in zip(held, fates, strict=True):
            if error is None:
                collector.ack(tup)
                continue
            # If the queue was deleted, the next step declares it again.
            self._known.pop(_place_of(message), None)
            reason = reason_of(error)
            if reason not in reported:
                reported.add(reason)
                collector.report_error(reason)
            collector.fail(tup, reason)

    @property
    def needed_fields(self) -> frozenset[str]:
        """The fields that every tuple must have."""
        return self._needed_fields

    @property
    def queue(self) -> Any:
        """The queue's name or a ``field``; None: the sink publishes to an exchange."""
        return self._envelope.queue

    @property
    def exchange(self) -> Any:
        """The exchange's name or a ``field``; None: the sink publishes to a queue."""
        return self._envelope.exchange

    @property
    def declares(self) -> bool:
        """True if the sink declares a missing queue or exchange."""
        return self._declare and (self.exchange is None or self._exchange_type is not None)

    def take_held(self) -> list[tuple[Tuple, OutgoingMessage]]:
        """Take the tuples, with their messages, that ``execute`` has kept since the last call."""
        held = self._held
        self._held = []
        return held

    def cleanup(self) -> None:
        """Close the connection."""
        if self._publisher is not None:
            self._publisher.close()

    def _body_of(self, tup: Tuple) -> bytes:
        if self._body is not None:
            return plain_body(self._body(tup))
        names = self._fields or [name for name in tup.fields if name not in self._envelope.fields]
        return json_body((name, tup[name]) for name in names)

    def _publish(
        self, messages: list[OutgoingMessage], on_wait: Callable[[bool], None]
    ) -> list[QueuesError | None]:
        """Publish the messages; returns each one's error, or None, in order."""
        if self._publisher is None:
            raise TopologyError("QueueSink was not prepared")
        places = [_place_of(message) for message in messages]
        refused = self._look_after(set(places), on_wait)
        fates = iter(
            self._publisher.publish_each(
                [
                    message
                    for message, place in zip(messages, places, strict=True)
                    if place not in refused
                ],
                on_wait,
            )
        )
        return [refused[place] if place in refused else next(fates) for place in places]

    def _look_after(
        self, places: set[Place], on_wait: Callable[[bool], None]
    ) -> dict[Place, QueuesError]:
        """Declare queues and exchanges that are not known to exist, or check them: publishing to a
        missing exchange closes the channel, and with it all publications on their way.

        A thousand new queues take half a minute. Returns an error for each place that does not
        exist.
        """
        refused: dict[Place, QueuesError] = {}
        away: BrokerUnavailableError | None = None
        said = time.monotonic()
        for place in places & self._known.keys():
            self._known.move_to_end(place)
        for place in sorted(places - self._known.keys()):
            if time.monotonic() - said >= _SAY_S:
                on_wait(False)
                said = time.monotonic()
            try:
                if away is not None:
                    # The full wait for the broker is over: do not wait again.
                    raise away
                self._ensure(place)
            except BrokerFailedError as error:
                # RabbitMQ fails at this name alone.
                refused[place] = error
            except BrokerUnavailableError as error:
                refused[place] = away = error
            except QueuesError as error:
                refused[place] = error
        return refused

    def _ensure(self, place: Place) -> None:
        exchange, queue = place
        if exchange and self._exchange_type is not None:
            declare_exchange(self._amqp_url, exchange, self._exchange_type, self._patience)
        elif exchange:
            find_exchange(self._amqp_url, exchange, self._patience)
        elif self._declare and not queue.startswith(_RESERVED):
            declare_queue(self._amqp_url, WorkQueue(name=queue), self._patience)
        else:
            # Each client of a service may have its own queue.
            return
        self._known[place] = None
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)


def _place_of(message: OutgoingMessage) -> Place:
    return (message.exchange, "") if message.exchange else ("", message.routing_key)


def _reset_timeouts(held: Sequence[Tuple], collector: OutputCollector) -> Callable[[bool], None]:
    """Return a function that restarts the timeouts of tuples that wait for the broker, and reports
    its alarm once.
    """
    said = False

    def on_wait(alarm: bool) -> None:
        nonlocal said
        for tup in held:
            collector.reset_timeout(tup)
        if alarm and not said:
            said = True
            collector.report_error(
                "RabbitMQ takes no messages now (memory or disk alarm); the sink waits until it "
                "does: see TiercelServerRefusesWrites in docs/runbook.md"
            )

    return on_wait


def _check_properties(properties: Mapping[str, Any]) -> None:
    for name in properties:
        if name not in WRITTEN:
            known = ", ".join(WRITTEN)
            raise TopologyError(
                f"{name!r} is neither a setting of QueueSink nor a property of a message; the "
                f"properties are {known}{did_you_mean(name, (*WRITTEN, *_SETTINGS))}"
            )


def _check_exchange_type(type_: Any, exchange: Any, *, declare: bool) -> None:
    if type_ is None:
        return
    if not exchange:
        raise TopologyError(
            "QueueSink declares an exchange of its exchange_type: name it with exchange"
        )
    if not declare:
        raise TopologyError(
            "QueueSink with declare=False declares no exchange: leave out declare or exchange_type"
        )
    if type_ not in _EXCHANGE_TYPES and not (
        isinstance(type_, str) and type_.startswith(_PLUGIN) and len(type_.encode()) <= _NAME_BYTES
    ):
        raise TopologyError(
            f"QueueSink: there is no exchange_type {type_!r:.50}; use "
            f"{', '.join(_EXCHANGE_TYPES)}, or the type of a plugin, which begins with {_PLUGIN}"
        )


def _check_patience(seconds: float) -> None:
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= _LONGEST_PATIENCE_S:
        raise TopologyError(
            f"QueueSink needs a patience_secs greater than 0, and of a day at most, not "
            f"{seconds!r:.50}"
        )


def _check_body(body: Any, fields: Sequence[str]) -> None:
    if body is not None and fields:
        raise TopologyError(
            "QueueSink takes body for a body as it is, or fields for a JSON object, not both"
        )
    if isinstance(fields, str):
        raise TopologyError(
            f"QueueSink takes a list of fields; for one body as it is write body=field({fields!r})"
        )
    if not (body is None or isinstance(body, (str, bytes, FromField))):
        raise TopologyError(
            f'QueueSink takes a string, bytes or field("name") as the body, not {body!r:.50}'
        )


def no_address(component: str) -> str:
    """Return the message for a topology without a broker to publish to."""
    return (
        f"{component!r} publishes to RabbitMQ, and no address is given: use --amqp or set "
        "TIERCEL_AMQP"
    )

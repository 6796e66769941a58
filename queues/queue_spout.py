"""The built-in spout: tuples from a RabbitMQ queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.declare import Binding, WorkQueue
from tiercel.queues.consuming.consumer import Consumer, ConsumerSettings
from tiercel.queues.consuming.messages import Delivery, Later
from tiercel.queues.errors import BadBodyError, BadPropertyError
from tiercel.queues.limits import PREFETCH
from tiercel.queues.message.identity import NO_IDENTITY, Identity, identity_reader
from tiercel.queues.message.properties import PropertyColumns
from tiercel.queues.nouns import refuse_typos
from tiercel.queues.retry import (
    DEFAULT_RETRY,
    DELIVERY_LIMIT,
    RetryPolicy,
    check_queue_name,
)
from tiercel.queues.spout import MsgId, Spout, SpoutCollector, SpoutContext
from tiercel.queues.values.formats import Decoder, Format, decoder_for
from tiercel.queues.values.models import body_fields, model_decoder
from tiercel.queues.values.schema import Schema


def check_settings(queue: WorkQueue, prefetch: int, identity: str | Sequence[str] | None) -> None:
    """Raise ValueError for settings that would fail in a worker."""
    check_queue_name(queue.name)
    _check_whole("prefetch", prefetch, 65_535)
    _check_whole("delivery_limit", queue.delivery_limit, 2**31 - 1)
    retry: object = queue.retry
    if not isinstance(retry, RetryPolicy):
        why = f"retry must be a RetryPolicy, not {retry!r:.50}"
        raise ValueError(why)  # noqa: TRY004 - as for all settings
    if queue.bindings and not queue.declare:
        raise ValueError(
            "declare=False leaves the queue as it is, and bindings bind it: leave one out"
        )
    if identity is not None:
        identity_reader(identity)


def _check_whole(name: str, number: object, most: int) -> None:
    if type(number) is not int or not 1 <= number <= most:
        raise ValueError(f"{name} must be a whole number from 1 to {most}, not {number!r:.50}")


def refusal_of(error: Exception) -> str:
    """Return the reason for dead-lettering a message that could not be decoded or emitted."""
    if isinstance(error, (BadBodyError, BadPropertyError)):
        return str(error)
    if isinstance(error, ValueError):
        return f"does not fit the fields: {error}"
    return f"could not be emitted: {type(error).__name__}: {error}"


class MessageId(NamedTuple):
    """A message as a spout task knows it: the task, its channel's epoch, and the delivery tag."""

    task: int
    epoch: int
    tag: int

    def __str__(self) -> str:
        return f"{self.tag} of channel {self.epoch}"


# A message, its values, and its identity.
_Decoded = tuple[MessageId, list[Any], Identity | None]


class QueueSpout(Spout):
    """Emits one tuple per message, acks the message when its tuple's tree is complete, else has it
    delivered again.

    A message stays in the queue, opened, until it is acked. It is delivered at least once, and
    emitted again after a failure, a timeout, or the loss of a worker or a connection. A message
    that fails once more after ``delivery_limit`` failures of its own goes to the dead-letter queue
    ``<queue>.dead`` with the last reason; so does, at once, a message whose body does not fit
    ``fields`` or the model or is above 16 MiB, a message for which a grouping raises an error, and
    a message that a bolt rejects (``raise Reject``).

    The tuple has the ``fields`` of the body, and behind them a column for each of the named
    ``properties``: message_id, correlation_id, reply_to, content_type, content_encoding, type,
    app_id, user_id, exchange, routing_key and queue (string), headers (map<string,string>),
    priority and delivery_count (int), timestamp (timestamp), redelivered (boolean). A mapping gives
    the columns other names: ``{"type": "kind"}``. A missing property is null.

    A message that a bolt postpones (``RetryLater``) leaves the queue: a copy lies in a delay queue,
    ``<queue>.delay.<milliseconds>``, until RabbitMQ moves it back. A worker that dies between the
    copy and the ack leaves both: such a message is delivered twice.

    A message that is released (its driver was restarted, Redis lost the ledger) is emitted again at
    once, without the broker, and counts as no failure. Messages go back to the broker when the
    spout is closed or deactivated, when nothing can be emitted, when they have waited for five
    minutes, and, if a return is not counted, when they are released for the third time.

    The ``identity`` (id, header or body, and the publisher's user) of a message is the same at each
    delivery, and so are the keys of the tuples of its tree (``tup.key``), by which effects take
    place once. A message without such an identity is processed without keys, and counted
    (``no_identity``).

    A task asks RabbitMQ for ``prefetch`` messages at most. It may also hold messages that it asked
    for before that number grew, no more than ``prefetch``, and failed messages waiting for their
    back-off, which keep no others waiting.

    The queue is declared as a durable quorum queue unless ``declare`` is off; an existing queue is
    used as it is. Each of ``bindings`` binds it to an exchange: ``("events", "order.*")``, or
    ``("events", {"format": "pdf"})`` for a headers exchange, or ``("events",)`` for a fanout
    exchange. A missing exchange is declared, as a topic exchange in the first case; a third item
    names another type: ``("events", "order", "direct")``. A binding stays until it is unbound by
    hand.
    """

    # Made by ``open``.
    _task = -1
    _context: SpoutContext | None = None
    _consumer: Consumer | None = None
    _decode: Decoder | None = None
    # None if no property is named, or no identity.
    _read: Callable[[Delivery], list[Any]] | None = None
    _identify: Callable[[Delivery], Identity | None] | None = None

    @refuse_typos
    def __init__(  # noqa: PLR0913 - the queue's settings are keyword-only, and users write them in one place
        self,
        queue: str,
        fields: str | None = None,
        *,
        model: type[Any] | None = None,
        format: Format | None = None,  # noqa: A002 - reads best where it is used
        properties: Sequence[str] | Mapping[str, str] = (),
        bindings: Sequence[Sequence[Any]] = (),
        identity: str | Sequence[str] | None = None,
        prefetch: int = PREFETCH,
        delivery_limit: int = DELIVERY_LIMIT,
        retry: RetryPolicy | None = None,
        declare: bool = True,
    ) -> None:
        """``fields`` are the columns, in Spark's DDL, by default ``body string``. ``model``
        replaces them with a dataclass or a pydantic model, which validates each body. ``format`` is
        text, json or bytes; the default depends on the fields. ``identity``: "message_id",
        "header:NAME" or "body", or ["user_id", one of these]. Raises SchemaError or ValueError.
        """
        self._queue = WorkQueue(
            name=queue,
            delivery_limit=delivery_limit,
            retry=retry or DEFAULT_RETRY,
            declare=declare,
            bindings=tuple(map(Binding.of, bindings)),
        )
        self.properties = PropertyColumns.of(properties)
        self.body_fields = body_fields(fields, model, format)
        self._model = model
        self._format = format
        self.decoder()
        self.output_fields = self.properties.after(self.body_fields)
        self.changing_fields = self.properties.changing
        self.identity = identity
        self._prefetch = prefetch
        check_settings(self._queue, prefetch, identity)
        Schema.parse(self.output_fields)

    @property
    def queue(self) -> WorkQueue:
        """The queue that it consumes."""
        return self._queue

    def decoder(self) -> Decoder:
        """Return the decoder from bodies to values of tuples; it raises only BadBodyError."""
        if self._model is not None:
            return model_decoder(self._model)
        return decoder_for(Schema.parse(self.body_fields), self._format)

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        """Begin to connect to ``config["amqp_url"]`` and return at once. Raises AddressError."""
        self._context = context
        self._task = context.task_id
        self._decode = self.decoder()
        address = Address.parse(config["amqp_url"])
        if self.properties.columns:
            self._read = self.properties.reader(self._queue.name, address.user)
        if self.identity is not None:
            self._identify = identity_reader(self.identity, address.user)
        settings = ConsumerSettings(
            queue=replace(
                self._queue,
                held=context.held,
                needed=context.needed,
                configured=context.configured,
            ),
            wake=context.wake,
            count=context.count,
            name=f"tiercel {context.topology} {context.component} {context.task_index}",
            tasks=context.parallelism,
            prefetch=self._prefetch,
            management_url=config.get("management_url"),
        )
        self._consumer = Consumer(address, settings)
        self._consumer.pause()  # until it is activated
        self._consumer.start()

    def activate(self) -> None:
        self._started.resume()

    def expect(self, tuples: int) -> None:
        self._started.expect(tuples)

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit the next message that can be decoded."""
        while found := self._decoded(collector, 1):
            if self._emit(collector, found[0]):
                return

    def next_tuples(self, collector: SpoutCollector, limit: int) -> None:
        """Emit the next messages that can be decoded."""
        found = self._decoded(collector, limit)
        if not found:
            return
        msg_ids, rows, identities = zip(*found, strict=True)
        try:
            if self.identity is None:
                collector.emit_all(rows, msg_ids)
            else:
                collector.emit_all(rows, msg_ids, identities=identities)
        except Exception:  # noqa: BLE001 - emitting one by one finds the message to blame
            for one in found:
                self._emit(collector, one)

    def deliveries_of(self, msg_ids: Sequence[MsgId]) -> list[Delivery | None]:
        """Return each message, and None if it is no longer open."""
        epoch, messages = self._started.open_messages()
        return [
            messages.get(tag) if its_epoch == epoch else None
            for _, its_epoch, tag in map(_message_id, msg_ids)
        ]

    def check(self) -> None:
        """Raise BrokerRefusedError when an operator must act: the login was refused, or the queue
        does not exist and may not be declared.
        """
        if self._consumer is not None and (refusal := self._consumer.error()) is not None:
            raise refusal

    def in_back_off(self) -> int:
        return 0 if self._consumer is None else self._consumer.waiting

    def is_full(self) -> bool:
        return self._consumer is not None and self._consumer.is_full

    def describe(self, msg_id: MsgId) -> Mapping[str, str]:
        [delivery] = self.deliveries_of([msg_id])
        given = None if delivery is None else delivery.properties.message_id
        return {"message_id": given or str(msg_id), "queue": self._queue.name}

    def ack(self, msg_id: MsgId) -> None:
        self.ack_all([msg_id])

    def ack_all(self, msg_ids: Sequence[MsgId]) -> None:
        tags: dict[int, list[int]] = {}
        for _, epoch, tag in map(_message_id, msg_ids):
            tags.setdefault(epoch, []).append(tag)
        for epoch, of_epoch in tags.items():
            self._started.ack(epoch, *of_epoch)

    def fail(self, msg_id: MsgId, reason: str = "") -> None:
        _, epoch, tag = _message_id(msg_id)
        self._started.fail(epoch, tag, reason)

    def reject(self, msg_id: MsgId, reason: str) -> None:
        _, epoch, tag = _message_id(msg_id)
        self._started.dead_letter(epoch, tag, f"rejected: {reason}")
        self._count("rejected", 1)

    def retry_later(self, msg_id: MsgId, seconds: float, reason: str, *, blame: bool) -> None:
        _, epoch, tag = _message_id(msg_id)
        later = Later(seconds=seconds, reason=reason, blame=blame)
        self._started.retry_later(epoch, tag, later)

    def release(self, msg_id: MsgId) -> None:
        _, epoch, tag = _message_id(msg_id)
        self._started.release(epoch, tag)

    def deactivate(self) -> None:
        self._started.pause()

    def close(self, grace: timedelta) -> None:
        if self._consumer is not None:
            self._consumer.stop(grace)
            self._consumer = None

    @property
    def _started(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("open the spout first")
        return self._consumer

    def _decoded(self, collector: SpoutCollector, limit: int) -> list[_Decoded]:
        """Return the next messages that can be decoded; an empty list only if there are none."""
        consumer = self._consumer
        decode = self._decode
        read = self._read
        identify = self._identify
        task = self._task
        if consumer is None or decode is None:
            raise RuntimeError("open the spout first")
        decoded: list[_Decoded] = []
        while not decoded and (deliveries := consumer.get(limit)):
            for delivery in deliveries:
                msg_id = MessageId(task, delivery.epoch, delivery.tag)
                try:
                    values = decode(delivery.body)
                    if read is not None:
                        values += read(delivery)
                    identity = None if identify is None else identify(delivery)
                    decoded.append((msg_id, values, identity))
                except Exception as error:  # noqa: BLE001 - a message harms itself alone
                    self._refuse(collector, msg_id, error)
        if identify is not None:
            self._count(NO_IDENTITY, sum(known is None for _, _, known in decoded))
        return decoded

    def _emit(self, collector: SpoutCollector, one: _Decoded) -> bool:
        """Emit one message; return False if its values do not fit and it is refused."""
        msg_id, values, identity = one
        try:
            if identity is None:
                collector.emit(values, msg_id)
            else:
                collector.emit(values, msg_id, identity=identity)
        except Exception as error:  # noqa: BLE001 - a grouping may raise anything; a message harms itself alone
            self._refuse(collector, msg_id, error)
            return False
        return True

    def _refuse(self, collector: SpoutCollector, msg_id: MessageId, error: Exception) -> None:
        reason = refusal_of(error)
        self._started.dead_letter(msg_id.epoch, msg_id.tag, reason)
        collector.report_error(f"message dead-lettered: {reason}")
        self._count("rejected", 1)

    def _count(self, counter: str, number: int) -> None:
        if self._context is not None and number:
            self._context.count(counter, number)


def _message_id(msg_id: MsgId) -> MessageId:
    if isinstance(msg_id, MessageId):
        return msg_id
    raise TypeError(f"{msg_id!r} is no message id of this spout")

"""The built-in spout: tuples from a RabbitMQ queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.bindings import Binding
from tiercel.queues.broker.declare import WorkQueue
from tiercel.queues.consuming.consumer import Consumer, ConsumerSettings
from tiercel.queues.consuming.hand_out import Delivery
from tiercel.queues.errors import BadBodyError, BadPropertyError
from tiercel.queues.formats import Decoder, Format, decoder_for
from tiercel.queues.limits import PREFETCH
from tiercel.queues.message.identity import Identity, identity_reader
from tiercel.queues.message.properties import PropertyColumns
from tiercel.queues.retry import DEFAULT_RETRY, DELIVERY_LIMIT, RetryPolicy
from tiercel.queues.schema import Schema
from tiercel.queues.spout import MsgId, Spout, SpoutCollector, SpoutContext

# The counter of messages that have no identity, where one was asked for.
NO_IDENTITY = "no_identity"
_DEFAULT_FIELDS = "body string"


class MessageId(NamedTuple):
    """A message as the broker knows it: delivery tags are scoped to a channel, and begin at 1
    again on the next.
    """

    task: int
    epoch: int
    tag: int


# A message, its values, and what it is known by.
_Decoded = tuple[MessageId, list[Any], Identity | None]


class QueueSpout(Spout):
    """Emits one tuple per message, acknowledges the message when its tuple's tree is complete, else
    has it delivered again.

    A message stays in the queue, opened, until it is acked. It is delivered at least once, and
    emitted again after a failure, a timeout, or when a worker or a connection died. One that fails
    after ``delivery_limit`` failures of its own goes to the dead-letter queue ``<queue>.dead`` with
    the last reason; so does, at once, a body that does not fit ``fields``, one above 16 MiB, or a
    message that a grouping raises on.

    The tuple has the ``fields`` of the body, and behind them a column for each of the named
    ``properties``: message_id, correlation_id, reply_to, content_type, content_encoding, type,
    app_id, user_id, exchange, routing_key and queue (string), headers (map<string,string>),
    priority and delivery_count (int), timestamp (timestamp), redelivered (boolean). A mapping
    gives the columns other names: ``{"type": "kind"}``. A property that is not there is null.

    What is released (its driver was restarted, Redis lost the ledger) is emitted again from here,
    at once and as often as it is released; it counts as no failure and costs the message nothing.
    Only who closes or deactivates the spout, expects nothing of it, or lets a message grow old in
    it (five minutes) has it give messages back to the broker.

    By its ``identity`` (id, header or body) a message is the same one at each delivery, also after
    a restart and as a dead letter that was put back: ``tup.key`` is the same for each tuple of its
    tree then, and effects take place once by it. One that has no such identity is processed as
    ever, without keys, and counted (``no_identity``).

    The queue is declared as a durable quorum queue unless ``declare`` is off; one that exists
    is used as it is. Each of ``bindings`` binds it to an exchange: ``("events", "order.*")``, or
    ``("events", {"format": "pdf"})`` for a headers exchange, or ``("events",)`` for a fanout
    exchange. An exchange that is missing is made, as a topic exchange in the first case; a third
    item names another type: ``("events", "order", "direct")``. RabbitMQ forgets no binding by
    itself: one that is not wanted any more is unbound by hand.
    """

    def __init__(  # noqa: PLR0913 - the queue's settings are keyword-only, and users write them in one place
        self,
        queue: str,
        fields: str = _DEFAULT_FIELDS,
        *,
        properties: Sequence[str] | Mapping[str, str] = (),
        format: Format | None = None,  # noqa: A002 - reads best where it is used
        prefetch: int = PREFETCH,
        delivery_limit: int = DELIVERY_LIMIT,
        retry: RetryPolicy | None = None,
        declare: bool = True,
        bindings: Sequence[Sequence[Any]] = (),
        identity: str | None = None,
    ) -> None:
        """``format`` is text, json or bytes; by default what suits the fields. ``identity``:
        "message_id", "header:NAME" or "body". Raises SchemaError or ValueError.
        """
        self._queue = WorkQueue(
            name=queue,
            delivery_limit=delivery_limit,
            retry=retry or DEFAULT_RETRY,
            declare=declare,
            bindings=tuple(map(Binding.of, bindings)),
        )
        self.properties = PropertyColumns.of(properties)
        self.body_fields = fields
        self.identity = identity
        self.output_fields = self.properties.after(fields)
        self._format = format
        self._prefetch = prefetch
        self._expected = -1  # the last argument of ``expect``; -1: not called yet
        self._consumer: Consumer | None = None
        self._decode: Decoder | None = None
        # Both None: no property is named, and no identity.
        self._read: Callable[[Delivery], list[Any]] | None = None
        self._identify: Callable[[Delivery], Identity | None] | None = None
        self._context: SpoutContext | None = None
        self._task = -1
        self._check()

    @property
    def queue(self) -> WorkQueue:
        """The queue that it consumes."""
        return self._queue

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        """Begins to connect to ``config["amqp_url"]``; returns at once. Raises AddressError."""
        self._context = context
        self._task = context.task_id
        self._expected = -1
        self._decode = decoder_for(Schema.parse(self.body_fields), self._format)
        self._identify = None if self.identity is None else identity_reader(self.identity)
        self._read = self.properties.reader(self._queue.name) if self.properties.columns else None
        settings = ConsumerSettings(
            queue=self._queue,
            wake=context.wake,
            count=context.count,
            name=f"tiercel {context.topology} {context.component} {context.task_index}",
            tasks=context.parallelism,
            prefetch=self._prefetch,
        )
        self._consumer = Consumer(Address.parse(config["amqp_url"]), settings)
        self._consumer.pause()  # until it is activated
        self._consumer.start()

    def activate(self) -> None:
        self._started.resume()

    def expect(self, tuples: int) -> None:
        if tuples != self._expected:
            self._expected = tuples
            self._started.expect(tuples)

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emits the next message that can be decoded."""
        while found := self._decoded(collector, 1):
            if self._emit(collector, *found[0]):
                return

    def next_tuples(self, collector: SpoutCollector, limit: int) -> None:
        """Emits the next messages that can be decoded."""
        found = self._decoded(collector, limit)
        if not found:
            return
        msg_ids, rows, identities = zip(*found, strict=True)
        try:
            if self._identify is None:
                collector.emit_all(rows, msg_ids)
            else:
                collector.emit_all(rows, msg_ids, identities=identities)
        except Exception:  # noqa: BLE001 - one by one it is seen which of them is to blame
            for one in found:
                self._emit(collector, *one)

    def check(self) -> None:
        """Raises BrokerRefusedError when an operator must act: a refused login, a queue that does
        not exist and may not be declared.
        """
        if self._consumer is not None and (refusal := self._consumer.error()) is not None:
            raise refusal

    def ack(self, msg_id: MsgId) -> None:
        self.ack_all([msg_id])

    def ack_all(self, msg_ids: Sequence[MsgId]) -> None:
        tags: dict[int, list[int]] = {}
        for _, epoch, tag in map(_message_id, msg_ids):
            tags.setdefault(epoch, []).append(tag)
        for epoch, those in tags.items():
            self._started.ack(epoch, *those)

    def fail(self, msg_id: MsgId, reason: str = "") -> None:
        _, epoch, tag = _message_id(msg_id)
        self._started.fail(epoch, tag, reason)

    def release(self, msg_id: MsgId) -> None:
        _, epoch, tag = _message_id(msg_id)
        self._started.release(epoch, tag)

    def deactivate(self) -> None:
        self._started.pause()

    def close(self, grace: timedelta) -> None:
        if self._consumer is not None:
            self._consumer.stop(grace)
            self._consumer = None

    def _check(self) -> None:
        """Raise SchemaError or ValueError for settings that would fail in a worker."""
        queue = self._queue
        if not queue.name or len(queue.dead.encode()) > 255:
            raise ValueError(f"a queue needs a name of 1 to 250 bytes, not {queue.name[:50]!r}")
        if not 1 <= self._prefetch <= 65535:
            raise ValueError(f"prefetch must be 1 to 65535, not {self._prefetch}")
        if queue.delivery_limit < 1:
            raise ValueError(f"delivery_limit must be at least 1, not {queue.delivery_limit}")
        if queue.bindings and not queue.declare:
            raise ValueError(
                "declare=False leaves the queue as it is, and bindings bind it: leave one out"
            )
        decoder_for(Schema.parse(self.body_fields), self._format)
        Schema.parse(self.output_fields)
        if self.identity is not None:
            identity_reader(self.identity)

    @property
    def _started(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("open the spout first")
        return self._consumer

    def _decoded(self, collector: SpoutCollector, limit: int) -> list[_Decoded]:
        """The next messages, as far as they can be decoded, but for an empty list at least one
        while there are any.
        """
        consumer = self._consumer
        decode = self._decode
        read = self._read
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
                    identity = None if self._identify is None else self._identity_of(delivery)
                    decoded.append((msg_id, values, identity))
                except Exception as error:  # noqa: BLE001 - a message harms itself alone
                    self._refuse(collector, msg_id, error)
        return decoded

    def _identity_of(self, delivery: Delivery) -> Identity | None:
        found = None if self._identify is None else self._identify(delivery)
        if found is None and self._context is not None:
            self._context.count(NO_IDENTITY, 1)
        return found

    def _emit(
        self,
        collector: SpoutCollector,
        msg_id: MessageId,
        values: list[Any],
        identity: Identity | None,
    ) -> bool:
        """False if the values do not fit: then the message is refused."""
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
        if isinstance(error, (BadBodyError, BadPropertyError)):
            reason = str(error)
        elif isinstance(error, ValueError):
            reason = f"does not fit the fields: {error}"
        else:
            reason = f"could not be emitted: {type(error).__name__}: {error}"
        self._started.dead_letter(msg_id.epoch, msg_id.tag, reason)
        collector.report_error(f"message dead-lettered: {reason}")
        if self._context is not None:
            self._context.count("rejected", 1)


def _message_id(msg_id: MsgId) -> MessageId:
    if isinstance(msg_id, MessageId):
        return msg_id
    raise TypeError(f"{msg_id!r} is no message id of this spout")

"""The built-in sink: each tuple becomes a message, in a RabbitMQ queue or for an exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack

from tiercel.queues.broker.declare import WorkQueue, declare_queue, find_exchange
from tiercel.queues.errors import BrokerUnavailableError, QueuesError
from tiercel.queues.message.writing import WRITTEN, OutgoingMessage
from tiercel.queues.publishing.publisher import Publisher
from tiercel.queues.values.formats import json_body, plain_body
from tiercel.spark_jobs.bolts.bolt import Bolt
from tiercel.spark_jobs.bolts.collecting import OutputCollector
from tiercel.spark_jobs.bolts.context import TopologyContext
from tiercel.spark_jobs.bolts.envelope import Envelope, SinkProperties
from tiercel.spark_jobs.bolts.fields import FromField, value_of
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.reasons import reason_of

# An exchange and nothing, or nothing and a queue.
Place = tuple[str, str]


class QueueSink(Bolt):
    """Publishes persistent messages with publisher confirms and ``mandatory``; emits nothing.

    A message goes to ``queue``, or to ``exchange`` with the ``routing_key``. Its body is ``body``
    as it is, a string or bytes, or else a JSON object of ``fields``, by default of all that are not
    used otherwise. Its properties are headers (a mapping), message_id, correlation_id, reply_to,
    content_type, content_encoding, type, app_id and user_id (texts), priority (0 to 255),
    expiration (a timedelta, or milliseconds) and timestamp (a datetime). Each of all these is
    either a constant or ``field("name")``, the value of that field; null: the message has none.

    If you set no message_id, a tuple that has a key (``tup.key``, see ``QueueSpout(identity=…)``)
    gives its message that: 32 hexadecimal digits, the same whenever it is published. So the next
    topology knows it again: ``QueueSpout(…, identity="message_id")``.

    Guarantee: a tuple is acked only after the broker confirmed its message. It fails, with the
    reason, when the message was returned (no such queue, or an exchange that leads it to none) or
    refused (queue full, message too large), or if the broker did not answer for ``patience_secs``.
    So a message is in its queue at least once: a published message may come again when another part
    of its tree fails. One tuple's failure does not concern its neighbours. The messages of a step
    go out together, in order.
    """

    transient = frozenset({"_amqp_url", "_known"})

    def __init__(  # noqa: PLR0913 - where to, what, and how
        self,
        queue: Any = None,
        *,
        exchange: Any = None,
        routing_key: Any = "",
        body: Any = None,
        fields: Sequence[str] = (),
        persistent: bool = True,
        declare: bool = True,
        patience_secs: float = 15.0,
        **properties: Unpack[SinkProperties],
    ) -> None:
        """``declare``: a queue that is missing is made, as a ``QueueSpout`` would make it, with
        its dead letters; an exchange must be there. Raises TopologyError.
        """
        _check_properties(properties)
        self._envelope = Envelope(
            queue=queue,
            exchange=exchange,
            routing_key=routing_key,
            persistent=persistent,
            properties=properties,
        )
        _check_body(body, fields)
        if not patience_secs > 0:
            raise TopologyError(
                f"QueueSink needs a patience_secs of more than 0, not {patience_secs!r:.50}"
            )
        self._body = None if body is None else value_of(body)
        self._fields = tuple(fields)
        self._not_in_body = self._envelope.fields
        self._declare = declare
        self._patience = timedelta(seconds=patience_secs)
        self._amqp_url = ""
        self._publisher: Publisher | None = None
        # Queues that were made, and exchanges that were there.
        self._known: set[Place] = set()
        self._held: list[tuple[Tuple, OutgoingMessage]] = []

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Connects in the background, to ``config["amqp_url"]``: the topology's broker, or one of
        the sink's own settings.

        Raises TopologyError without an address, AddressError for one that is none.
        """
        self._amqp_url = config.get("amqp_url") or ""
        if not self._amqp_url:
            raise TopologyError(no_address(context.component))
        self._publisher = Publisher(self._amqp_url, self._patience)

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Keep it until ``flush``; a tuple that is no message fails here.

        A tick publishes nothing.
        """
        if tup.is_tick:
            collector.ack(tup)
            return
        self._held.append((tup, self._envelope.around(tup, self._body_of(tup))))

    def flush(self, collector: OutputCollector) -> None:
        """Publish, wait for the confirms, and ack or fail each tuple."""
        held = self.take_held()
        if not held:
            return
        reported = set()
        for (tup, message), error in zip(
            held, self._publish([message for _, message in held]), strict=True
        ):
            if error is None:
                collector.ack(tup)
                continue
            # If the queue was deleted, the next step makes it again.
            self._known.discard(_place_of(message))
            reason = reason_of(error)
            if reason not in reported:
                reported.add(reason)
                collector.report_error(reason)
            collector.fail(tup, reason)

    @property
    def queue(self) -> Any:
        """The name of its queue or a ``field``; None: it publishes to an exchange."""
        return self._envelope.queue

    @property
    def exchange(self) -> Any:
        """The name of its exchange or a ``field``; None: it publishes to a queue."""
        return self._envelope.exchange

    def take_held(self) -> list[tuple[Tuple, OutgoingMessage]]:
        """Take what ``execute`` has kept since the last call: each tuple, and its message."""
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
        names = self._fields or [name for name in tup.fields if name not in self._not_in_body]
        return json_body((name, tup[name]) for name in names)

    def _publish(self, messages: list[OutgoingMessage]) -> list[QueuesError | None]:
        """The fate of each, in order."""
        if self._publisher is None:
            raise TopologyError("QueueSink was not prepared")
        places = [_place_of(message) for message in messages]
        refused = self._look_after(set(places))
        fates = iter(
            self._publisher.publish_each(
                [
                    message
                    for message, place in zip(messages, places, strict=True)
                    if place not in refused
                ]
            )
        )
        return [refused[place] if place in refused else next(fates) for place in places]

    def _look_after(self, places: set[Place]) -> dict[Place, QueuesError]:
        """Make the queues that are not known to be there, and look for the exchanges: publishing to
        one that is missing ends the channel with all that is on its way.

        Returns why not, for the ones that are not there.
        """
        refused: dict[Place, QueuesError] = {}
        away: BrokerUnavailableError | None = None
        for place in sorted(places - self._known):
            exchange, queue = place
            try:
                if away is not None:
                    # No more waiting for a broker that was waited for.
                    raise away
                if exchange:
                    find_exchange(self._amqp_url, exchange, self._patience)
                elif self._declare:
                    declare_queue(self._amqp_url, WorkQueue(name=queue), self._patience)
                else:
                    # Each client of a service may have a queue of its own.
                    continue
                self._known.add(place)
            except BrokerUnavailableError as error:
                refused[place] = away = error
            except QueuesError as error:
                refused[place] = error
        return refused


def _place_of(message: OutgoingMessage) -> Place:
    return (message.exchange, "") if message.exchange else ("", message.routing_key)


def _check_properties(properties: Mapping[str, Any]) -> None:
    for name in properties:
        if name not in WRITTEN:
            known = ", ".join(WRITTEN)
            raise TopologyError(
                f"QueueSink has no setting {name!r}, and a message no such property; its "
                f"properties are {known}"
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

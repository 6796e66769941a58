"""The built-in sink: each tuple becomes a message in a RabbitMQ queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeGuard

from tiercel.queues.bodies import json_body, plain_body
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.errors import BrokerUnavailableError, QueuesError
from tiercel.queues.publishing.publisher import Publisher
from tiercel.spark_jobs.bolts.bolt import Bolt
from tiercel.spark_jobs.bolts.collecting import OutputCollector
from tiercel.spark_jobs.bolts.context import TopologyContext
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.reasons import reason_of

_Message = tuple[str, bytes]
_NAME_BYTES = 250
# AMQP has 255, and the dead-letter queue needs five of them.
_NAMES = "use 1 to 250 bytes"


class QueueSink(Bolt):
    """Publishes persistent messages with publisher confirms and ``mandatory``; emits nothing.

    Guarantee: a tuple is acked only after the broker confirmed its message. It fails, with the
    reason, when the message was returned (no such queue) or refused (queue full, message too
    large), or when the broker told nothing for ``patience_secs``. So a message is in its queue at
    least once: what was published may come again when another part of its tree fails. One tuple's
    failure does not concern its neighbours. The messages of a step go out together, in order.
    """

    def __init__(  # noqa: PLR0913 - where to, what, and how
        self,
        queue: str | None = None,
        *,
        field: str | None = None,
        fields: Sequence[str] = (),
        queue_field: str | None = None,
        declare: bool = True,
        patience_secs: float = 15.0,
    ) -> None:
        """The body is ``field`` as it is, a string or bytes, or else a JSON object of ``fields``,
        by default of all of them.

        ``queue_field`` holds the name of the tuple's queue; where that is null, the tuple goes to
        ``queue``. ``declare``: a queue that is missing is made, as a ``QueueSpout`` would make it,
        with its dead letters. Raises TopologyError.
        """
        _check_target(queue, queue_field)
        _check_body(field, fields)
        if not patience_secs > 0:
            raise TopologyError(
                f"QueueSink needs a patience_secs of more than 0, not {patience_secs!r:.50}"
            )
        self._queue = queue
        self._queue_field = queue_field
        self._field, self._fields = field, tuple(fields)
        self._declare, self._patience = declare, timedelta(seconds=patience_secs)
        self._amqp_url = ""
        self._publisher: Publisher | None = None
        self._declared: set[str] = set()
        self._held: list[tuple[Tuple, _Message]] = []

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
        self._held.append((tup, (self._queue_of(tup), self._body_of(tup))))

    def flush(self, collector: OutputCollector) -> None:
        """Publish, wait for the confirms, and ack or fail each tuple."""
        held = self.take_held()
        if not held:
            return
        reported = set()
        for (tup, (queue, _)), error in zip(
            held, self._publish([message for _, message in held]), strict=True
        ):
            if error is None:
                collector.ack(tup)
                continue
            # If the queue was deleted, the next step makes it again.
            self._declared.discard(queue)
            reason = reason_of(error)
            if reason not in reported:
                reported.add(reason)
                collector.report_error(reason)
            collector.fail(tup, reason)

    @property
    def queue(self) -> str | None:
        """The queue of tuples whose ``queue_field`` names none."""
        return self._queue

    @property
    def queue_field(self) -> str | None:
        """The field that names a tuple's queue."""
        return self._queue_field

    def take_held(self) -> list[tuple[Tuple, _Message]]:
        """Take what ``execute`` has kept since the last call: each tuple, and its message."""
        held = self._held
        self._held = []
        return held

    def cleanup(self) -> None:
        """Close the connection."""
        if self._publisher is not None:
            self._publisher.close()

    def _queue_of(self, tup: Tuple) -> str:
        named = None if self._queue_field is None else tup[self._queue_field]
        queue = self._queue if named is None else named
        if not _can_name_a_queue(queue):
            raise ValueError(
                f"field {self._queue_field!r} holds {queue!r:.50}, which is no name of a "
                f"queue: {_NAMES}"
            )
        return queue

    def _body_of(self, tup: Tuple) -> bytes:
        if self._field is not None:
            return plain_body(tup[self._field])
        names = self._fields or [name for name in tup.fields if name != self._queue_field]
        return json_body((name, tup[name]) for name in names)

    def _publish(self, messages: list[_Message]) -> list[QueuesError | None]:
        """The fate of each, in order."""
        if self._publisher is None:
            raise TopologyError("QueueSink was not prepared")
        refused = self._declare_all({queue for queue, _ in messages}) if self._declare else {}
        fates = iter(
            self._publisher.publish_each(
                [message for message in messages if message[0] not in refused]
            )
        )
        return [refused[queue] if queue in refused else next(fates) for queue, _ in messages]

    def _declare_all(self, queues: set[str]) -> dict[str, QueuesError]:
        """Make the queues that are not known to be there.

        Returns why not, for those that could not be made.
        """
        refused: dict[str, QueuesError] = {}
        away: BrokerUnavailableError | None = None
        for queue in sorted(queues - self._declared):
            try:
                if away is not None:
                    # No more waiting for a broker that was waited for.
                    raise away
                declare_queue(self._amqp_url, WorkQueue(name=queue), self._patience)
                self._declared.add(queue)
            except BrokerUnavailableError as error:
                refused[queue] = away = error
            except QueuesError as error:
                refused[queue] = error
        return refused


def _check_target(queue: str | None, queue_field: str | None) -> None:
    if queue is None and queue_field is None:
        raise TopologyError(
            "QueueSink needs a queue: its name, or queue_field for the field that holds it"
        )
    if queue is not None and not _can_name_a_queue(queue):
        raise TopologyError(f"QueueSink cannot publish to {queue!r:.50}: {_NAMES}")


def _check_body(field: str | None, fields: Sequence[str]) -> None:
    if field is not None and fields:
        raise TopologyError(
            "QueueSink takes field for a body as it is, or fields for a JSON object, not both"
        )
    if isinstance(fields, str):
        raise TopologyError(
            f"QueueSink takes a list of fields; for one body as it is write field={fields!r}"
        )


def _can_name_a_queue(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and 1 <= len(name.encode()) <= _NAME_BYTES


def no_address(component: str) -> str:
    """Return the message for a topology without a broker to publish to."""
    return (
        f"{component!r} publishes to RabbitMQ, and no address is given: use --amqp or set "
        "TIERCEL_AMQP"
    )

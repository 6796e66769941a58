"""Declaring queues: a quorum queue for the work, its dead-letter queue, and its bindings.

The arguments are explained at https://www.rabbitmq.com/docs/quorum-queues (dead lettering, poison
messages, delayed retry).

Missing exchanges of bindings, and of sinks with an ``exchange_type``, are declared; an existing
exchange is used as it is (https://www.rabbitmq.com/tutorials/amqp-concepts#exchanges).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from pika.data import encode_table
from pika.exceptions import ChannelClosedByBroker

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import (
    ACCESS_REFUSED,
    AUTO_DELETE,
    LIMIT,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    TYPE,
    dead_lettering_to,
    look,
    read_arguments,
)
from tiercel.queues.broker.connection import connected, translate, translated
from tiercel.queues.broker.frames import UNENCODABLE
from tiercel.queues.broker.management import told_arguments
from tiercel.queues.errors import (
    BrokerRefusedError,
    ExchangeMissingError,
    QueuesError,
    ServerTooOldError,
)
from tiercel.queues.nouns import refuse_typos
from tiercel.queues.retry import (
    DEFAULT_RETRY,
    DELIVERY_LIMIT,
    BrokerLimit,
    RetryPolicy,
    check_queue_name,
    dead_letter_queue,
    is_broker_name,
)

_NAME_BYTES = 255
_FORM = (
    'write ("exchange", "routing.key"), ("exchange", {"header": "value"}) or ("exchange",), with '
    "the type of the exchange behind it if that is to be made and is not topic, headers or fanout"
)
_TYPE = re.compile(r"inequivalent arg 'type' for exchange .* but current is '?([\w-]+)'?")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """A binding of a queue to one exchange."""

    exchange: str
    routing_key: str = ""
    # Headers that a message must have, for a headers exchange.
    headers: Mapping[str, Any] = field(default_factory=dict)
    # Type of the exchange, if it must be declared.
    type: str = "topic"

    @classmethod
    def of(cls, given: Sequence[Any]) -> Binding:
        """Take (exchange, routing key or headers, type); raises ValueError.

        The default type is headers if headers are given, fanout without a routing key, else topic,
        which acts as direct if the key is not a pattern.
        """
        if isinstance(given, str) or not isinstance(given, Sequence) or not 1 <= len(given) <= 3:
            raise ValueError(f"{given!r:.80} is no binding: {_FORM}")
        exchange = given[0]
        key = given[1] if len(given) > 1 else ""
        type_ = given[2] if len(given) > 2 else None
        headers = key if isinstance(key, Mapping) else {}
        routing_key = "" if isinstance(key, Mapping) else key
        inferred = "headers" if headers else "topic" if routing_key else "fanout"
        texts = (exchange, routing_key, inferred if type_ is None else type_)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{given!r:.80} is no binding: {_FORM}")
        if any(len(text.encode()) > _NAME_BYTES for text in texts):
            raise ValueError(f"a binding has names of at most {_NAME_BYTES} bytes: {given!r:.80}")
        if not is_broker_name(exchange, 1, _NAME_BYTES):
            raise ValueError(
                "a binding names an exchange, without line breaks; through the default exchange "
                "each queue gets the messages published under its name"
            )
        _check_headers(headers)
        return cls(exchange=exchange, routing_key=routing_key, headers=dict(headers), type=texts[2])

    def misfit(self, type_: str) -> str:
        """Return how an exchange of this type would misunderstand it; empty if it fits."""
        if type_ == "headers" and not self.headers:
            return "a headers exchange ignores routing keys, and sends all its messages"
        if type_ != "headers" and self.headers:
            return f"a {type_} exchange ignores headers, and uses the routing key only"
        if type_ == "direct" and set(self.routing_key) & set("*#"):
            return "a direct exchange knows no patterns, and takes the key as it is"
        return ""


def bind(connection: Any, address: Address, queue: str, bindings: Sequence[Binding]) -> None:
    """Bind an existing queue; idempotent. ``connection`` is a ``BlockingConnection``.

    Raises ExchangeMissingError for a missing exchange that may not be declared, and
    BrokerRefusedError.
    """
    for binding in bindings:
        if misfit := exchange_misfit(connection, address, binding):
            log.warning(
                "queue %s is bound to exchange %s, which is there already: %s",
                queue,
                binding.exchange,
                misfit,
                extra={"event": "binding_misfit", "queue": queue},
            )
        with translated(address):
            connection.channel().queue_bind(
                queue, binding.exchange, binding.routing_key, arguments=dict(binding.headers)
            )


def exchange_misfit(connection: Any, address: Address, binding: Binding) -> str:
    """Make sure that the exchange exists; return how it would misunderstand the binding."""
    found = _declare_exchange(connection, address, binding.exchange, binding.type)
    return "" if found is None else binding.misfit(found)


def _declare_exchange(connection: Any, address: Address, exchange: str, type_: str) -> str | None:
    """Make sure that the exchange exists; return its type, or None if it is unknown."""
    try:
        connection.channel().exchange_declare(exchange, type_, durable=True)
    except ChannelClosedByBroker as error:
        if error.reply_code == PRECONDITION_FAILED and (
            said := _TYPE.search(str(error.reply_text))
        ):
            return said[1]
        if error.reply_code not in (PRECONDITION_FAILED, ACCESS_REFUSED):
            raise translate(error, address) from error
        # It has other properties, or this user may not declare it: then it must exist.
        try:
            _look_at_exchange(connection, address, exchange)
        except ExchangeMissingError:
            if error.reply_code == PRECONDITION_FAILED:
                # There is no such type.
                raise translate(error, address) from error
            raise
        return None
    return type_


def declare_exchange(
    amqp_url: str, exchange: str, type_: str, patience: timedelta = timedelta(0)
) -> None:
    """Declare a durable exchange over a separate connection; idempotent.

    An existing exchange is used as it is, with a warning if it has another type. Raises as
    ``find_exchange`` does, ExchangeMissingError only if this user may not declare it.
    """
    address = Address.parse(amqp_url)
    with connected(address, "tiercel declare", patience) as connection:
        found = _declare_exchange(connection, address, exchange, type_)
    if found not in (None, type_):
        log.warning(
            "exchange %s is used as it is: it routes as %s, not as %s",
            exchange,
            found,
            type_,
            extra={"event": "exchange_used_as_is"},
        )


def find_exchange(amqp_url: str, exchange: str, patience: timedelta = timedelta(0)) -> None:
    """Check over a separate connection that an exchange exists.

    Raises ExchangeMissingError, AddressError, BrokerUnavailableError, BrokerRefusedError.
    """
    address = Address.parse(amqp_url)
    with connected(address, "tiercel declare", patience) as connection:
        _look_at_exchange(connection, address, exchange)


def _look_at_exchange(connection: Any, address: Address, exchange: str) -> None:
    """Raise ExchangeMissingError if there is no such exchange."""
    with translated(address):
        connection.channel().exchange_declare(exchange, passive=True)


def _check_headers(headers: Mapping[str, Any]) -> None:
    for name, value in headers.items():
        try:
            encode_table([], {name: value})
        except UNENCODABLE:
            raise ValueError(
                f"a binding looks for headers that are texts, whole numbers, true or false: not "
                f"{name!r:.80} = {value!r:.80}"
            ) from None


ARGUMENT = "x-consumer-timeout"
_USUAL = timedelta(minutes=30)
# A message processed within this time is settled well before the usual timeout.
_SHORT = timedelta(minutes=24)
# Much longer than needed, so that one value suits most topologies: a queue's arguments cannot be
# changed. tiercel itself watches for bolts that hang.
_DAY = timedelta(days=1)
_BY_QUEUE_SINCE = (3, 12)
_BY_CONSUMER_SINCE = (4, 3)
log = logging.getLogger(__name__)

# The first version with at-least-once dead-lettering.
OLDEST_SERVER = (3, 10)
# From this version on a quorum queue has a delivery limit unless it is set to -1; before, it has
# none and -1 is refused.
_LIMITED_SINCE = (4, 0)
_LIMIT_SINCE_THEN = 20
_DELAYED_RETRY_SINCE = (4, 3)

# The delivery limit with which work queues are declared: none, in practice.
#
# RabbitMQ's count rises with each connection and worker that dies while a message is open. tiercel
# counts the failures of the message itself, and dead-letters it only for these
# (``queues.consuming.failures``). There must be a number: without a limit a quorum queue puts a
# returned message behind all waiting ones.
BROKER_LIMIT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class WorkQueue:
    """A queue that a topology reads, and the handling of failures.

    * ``name``: the name of the queue.
    * ``delivery_limit``: a message that has failed this often and fails once more is dead-lettered.
    * ``retry``: the waits before a failed message is delivered again.
    * ``declare``: if False, the queue must exist: a missing queue is an error.
    * ``held``: time for which a message may be held if a bolt may take longer than the message
      timeout; None: no bolt may.
    * ``needed``, ``configured``: time for which a window holds messages, as ``held``; a shorter
      consumer timeout is refused, unless RabbitMQ is ``configured`` with a longer one.
    * ``bindings``: the exchanges from which the queue gets messages, besides the default one.
    """

    name: str
    delivery_limit: int = DELIVERY_LIMIT
    retry: RetryPolicy = DEFAULT_RETRY
    declare: bool = True
    held: timedelta | None = None
    needed: timedelta | None = None
    configured: timedelta | None = None
    bindings: Sequence[Binding] = ()

    @property
    def dead(self) -> str:
        """The name of the dead-letter queue."""
        return dead_letter_queue(self.name)


WorkQueue.__init__ = refuse_typos(WorkQueue.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerTimeout:
    """Decision about the consumer timeout of a queue whose messages may be held long."""

    # Arguments of ``basic.consume``.
    arguments: Mapping[str, int] = field(default_factory=dict)
    # One line about a timeout that is too short, with advice; empty: it is long enough.
    warning: str = ""
    # The timeout as far as AMQP reveals it, and the advice to make it longer.
    there: timedelta = _USUAL
    todo: str = ""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """State of the queue on the broker."""

    # True if the broker delays rejected messages itself.
    delays_retries: bool
    limit: BrokerLimit
    consumer_timeout: ConsumerTimeout = field(default_factory=ConsumerTimeout)
    # As ``read_arguments`` returns them.
    arguments: Mapping[str, Any] | None = field(default=None, compare=False)


def declare_queue(amqp_url: str, queue: WorkQueue, patience: timedelta = timedelta(0)) -> None:
    """Declare a missing work queue, with its dead-letter queue, over a separate connection.

    ``patience`` is how long to try to connect. This is for publishers: an existing queue is not
    declared, only bound, and a client's exclusive one is left alone.

    Raises AddressError, BrokerUnavailableError, BrokerRefusedError and its subclasses; ValueError.
    """
    check_queue_name(queue.name)
    address = Address.parse(amqp_url)
    with connected(address, "tiercel declare", patience) as connection:
        check_server(connection, address)
        refusal = look(connection, queue.name)
        # An existing queue is not declared: if it is deleted now, that would make it without its
        # dead-letter queue.
        if refusal is not None:
            if refusal.reply_code == RESOURCE_LOCKED:
                return
            _declare_work_queue(connection, address, queue)
        bind(connection, address, queue.name, queue.bindings)


def declare_work_queue(
    connection: Any, address: Address, queue: WorkQueue, management_url: str | None = None
) -> Declared:
    """Make sure that the queue exists, and is bound; ``connection`` is a ``BlockingConnection``.

    This is for readers: an existing queue is never changed, and the effects of its arguments on
    deliveries are logged, as a warning unless ``queue.declare`` is off, since then its owner chose
    them. Arguments that AMQP does not reveal are read from the HTTP API at ``management_url``.

    Raises ServerTooOldError, QueueMissingError if ``queue.declare`` is off and the queue is
    missing, ExchangeMissingError, and BrokerRefusedError, also for a queue that cannot redeliver
    messages.
    """
    declared, why = look_at_work_queue(connection, address, queue, management_url)
    bind(connection, address, queue.name, queue.bindings)
    if why:
        log.log(
            logging.WARNING if queue.declare else logging.INFO,
            "queue %s is used as it is: %s",
            queue.name,
            why,
            extra={"event": "queue_used_as_is", "queue": queue.name},
        )
    return declared


def look_at_work_queue(
    connection: Any, address: Address, queue: WorkQueue, management_url: str | None = None
) -> tuple[Declared, str]:
    """As ``declare_work_queue``, without bindings and logs; the second item is the effects of an
    existing queue's arguments. With ``queue.declare`` off it changes nothing.
    """
    declared, why = _declare_work_queue(connection, address, queue)
    if declared.arguments is None:
        declared = replace(declared, arguments=told_arguments(management_url, address, queue.name))
    _refuse_unsafe(declared.arguments or {}, address, queue.name)
    return declared, why


def _declare_work_queue(
    connection: Any, address: Address, queue: WorkQueue
) -> tuple[Declared, str]:
    """Return the queue, and the effects of its existing arguments on a reader."""
    version = check_server(connection, address)
    if queue.declare:
        declare_dead_letter_queue(connection, address, queue.dead)
        arguments = work_queue_arguments(queue, version)
        if _declare(connection, address, queue.name, arguments):
            return _declared(arguments, version, queue), ""
    else:
        _look(connection, address, queue.name)
    found = read_arguments(connection, queue.name)
    declared = _declared(found, version, queue)
    return declared, _judged(declared, found, address, queue)


def limit_of(known: Mapping[str, Any], version: tuple[int, int]) -> BrokerLimit:
    """Return the limit of a queue with these arguments; a policy may have set a lower one."""
    limit = known.get(LIMIT, _LIMIT_SINCE_THEN if version >= _LIMITED_SINCE else None)
    counts = known.get(TYPE, "quorum") == "quorum"
    if not counts or (limit is not None and limit < 0):
        limit = None
    deletes = limit is not None and known.get("x-dead-letter-exchange") is None
    return BrokerLimit(counts=counts, returns=limit, deletes=deletes)


def _declared(
    arguments: Mapping[str, Any] | None, version: tuple[int, int], queue: WorkQueue
) -> Declared:
    """Interpret a queue's arguments, ``None`` if they are unknown."""
    known = {} if arguments is None else arguments
    return Declared(
        delays_retries=known.get("x-delayed-retry-type") == "failed",
        limit=replace(limit_of(known, version), moves=_moves(known, queue)),
        consumer_timeout=consumer_timeout(queue.held, version, queue.name, arguments),
        arguments=arguments,
    )


def _moves(known: Mapping[str, Any], queue: WorkQueue) -> bool:
    """Return True if RabbitMQ keeps a rejected message until the dead-letter queue has it."""
    return dead_lettering_to(queue.dead).items() <= known.items()


def _refuse_unsafe(found: Mapping[str, Any], address: Address, name: str) -> None:
    """Raise BrokerRefusedError for a queue that cannot keep unacked messages."""
    shown = f"queue {name!r} on {address}"
    if found.get(TYPE) not in (None, "quorum", "classic"):
        raise BrokerRefusedError(
            f"{shown} is a {found[TYPE]}, and RabbitMQ delivers no message of it again, so that a "
            "failed one would be lost; bind a quorum queue to the same exchange and read that"
        )
    if found.get(AUTO_DELETE):
        raise BrokerRefusedError(
            f"{shown} is auto-delete: RabbitMQ deletes it and its messages when its last consumer "
            "leaves, as at each restart of a worker or query; declare it again without auto_delete"
        )


def _judged(
    declared: Declared, found: Mapping[str, Any] | None, address: Address, queue: WorkQueue
) -> str:
    """Return the effects on deliveries of an existing queue's arguments; empty: none.

    Raises BrokerRefusedError if it would lose messages.
    """
    limit = declared.limit.returns
    if declared.limit.deletes and limit is not None and limit < 1:
        raise BrokerRefusedError(
            f"queue {queue.name!r} on {address} has the delivery limit {limit} and no dead-letter "
            "exchange: RabbitMQ deletes each message that comes back; declare the queue with a "
            "higher limit or a dead-letter exchange"
        )
    if found is None:
        return "its arguments cannot be read"
    if declared.limit.deletes:
        return (
            f"after {limit} deliveries a message is copied to {queue.dead!r}: there is no "
            "dead-letter exchange"
        )
    if not declared.limit.returns_are_free:
        return (
            f"RabbitMQ dead-letters messages that come back more than {limit} times, for lost "
            "connections too; to end that, delete it when it is empty and let tiercel declare it "
            f"with {LIMIT}={BROKER_LIMIT}"
        )
    if found.get(TYPE) != "quorum":
        return f"it is a {found.get(TYPE)} queue, where deliveries are counted per worker"
    return ""


def declare_dead_letter_queue(connection: Any, address: Address, name: str) -> None:
    """Make sure that a dead-letter queue exists."""
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    if check_server(connection, address) >= _LIMITED_SINCE:
        # Looking at a dead letter counts as a delivery. With a limit, enough looks would delete it.
        arguments[LIMIT] = -1
    _declare(connection, address, name, arguments)


def check_server(connection: Any, address: Address) -> tuple[int, int]:
    """Return the version of the server, (major, minor); raises ServerTooOldError."""
    text = server_property(connection, "version")
    numbers = [int(part) for part in text.split(".")[:2] if part.isdecimal()]
    version = (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
    if version < OLDEST_SERVER:
        product = server_property(connection, "product") or "the server"
        shown = f"{product} {text or 'without a version'}"
        raise ServerTooOldError(
            f"{shown} at {address} is too old; tiercel needs RabbitMQ "
            f"{'.'.join(map(str, OLDEST_SERVER))} or newer"
        )
    return version


def server_property(connection: Any, name: str) -> str:
    """Return a property of the server, such as its version; empty if it has none."""
    properties = connection._impl.server_properties or {}  # noqa: SLF001 - BlockingConnection has no public way to it
    return str(properties.get(name, ""))


def work_queue_arguments(queue: WorkQueue, version: tuple[int, int]) -> dict[str, Any]:
    """Return the arguments with which a work queue is declared on this version of RabbitMQ."""
    retry = delayed_retry_arguments(queue.retry) if version >= _DELAYED_RETRY_SINCE else {}
    timeout = timeout_arguments(queue.held, version)
    return {**dead_lettering_to(queue.dead), LIMIT: BROKER_LIMIT, **timeout, **retry}


def delayed_retry_arguments(policy: RetryPolicy) -> dict[str, Any]:
    """Return the arguments that make RabbitMQ 4.3 wait before it redelivers a rejected message;
    empty without a wait.

    ``failed`` means messages that count as failed (``basic.reject``), not those given back
    (``basic.nack``).
    """
    first_ms, longest_ms = (
        int(wait.total_seconds() * 1000) for wait in (policy.first, policy.longest)
    )
    if first_ms <= 0:
        return {}
    return {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": first_ms,
        "x-delayed-retry-max": max(first_ms, longest_ms),
    }


def _declare(connection: Any, address: Address, name: str, arguments: Mapping[str, Any]) -> bool:
    """Declare the queue; return False if it exists and differs."""
    try:
        connection.channel().queue_declare(name, durable=True, arguments=dict(arguments))
    except ChannelClosedByBroker as error:
        if error.reply_code != PRECONDITION_FAILED:
            raise _translated(error, address, name) from error
        # RabbitMQ refuses unknown arguments in the same way: then the queue may be missing.
        _look(connection, address, name)
        return False
    return True


def _look(connection: Any, address: Address, name: str) -> None:
    """Raise QueueMissingError if there is no such queue."""
    refusal = look(connection, name)
    if refusal is not None:
        raise _translated(refusal, address, name) from refusal


def _translated(error: ChannelClosedByBroker, address: Address, name: str) -> QueuesError:
    if error.reply_code != RESOURCE_LOCKED:
        return translate(error, address)
    return BrokerRefusedError(
        f"queue {name!r} on {address} is exclusive: it belongs to another connection, and is "
        "deleted with it; declare it again without exclusive"
    )


def timeout_arguments(held: timedelta | None, version: tuple[int, int]) -> dict[str, Any]:
    """Return the timeout argument for a work queue whose messages are held for ``held``.

    Empty from RabbitMQ 4.3 on: there the consumer sets the timeout.
    """
    if held is None or held <= _SHORT or not _BY_QUEUE_SINCE <= version < _BY_CONSUMER_SINCE:
        return {}
    return {ARGUMENT: _enough_ms(held)}


def consumer_timeout(
    held: timedelta | None,
    version: tuple[int, int],
    name: str,
    arguments: Mapping[str, Any] | None,
) -> ConsumerTimeout:
    """Decide about the queue ``name``, which has these arguments; None: they are unknown."""
    if held is None:
        return ConsumerTimeout()
    if version >= _BY_CONSUMER_SINCE:
        return ConsumerTimeout(arguments={ARGUMENT: _enough_ms(held)})
    found = (arguments or {}).get(ARGUMENT)
    there = timedelta(milliseconds=found) if isinstance(found, int) else _USUAL
    if held <= (there if found else _SHORT):
        return ConsumerTimeout()
    wanted = _enough_ms(held)
    todo = f"set consumer_timeout = {wanted} in rabbitmq.conf"
    if version >= _BY_QUEUE_SINCE:
        todo = (
            f"run rabbitmqctl set_policy --apply-to queues long-work '^{name}$' "
            f"'{{\"consumer-timeout\": {wanted}}}', or {todo}"
        )
    warning = (
        f"a bolt may hold a message of queue {name} for {held.total_seconds():.0f} s, and "
        f"RabbitMQ {version[0]}.{version[1]} takes it back after {there.total_seconds():.0f} s "
        f"unless it was told otherwise: {todo}"
    )
    return ConsumerTimeout(there=there, todo=todo, warning=warning)


def short_timeout(timeout: ConsumerTimeout, queue: WorkQueue, policy: timedelta) -> str:
    """Return the warning about a consumer timeout that is too short, given the one of a policy.

    Raises BrokerRefusedError if windows need more.
    """
    allowed = max(policy, queue.configured or policy)
    longest, needed = max(allowed, timeout.there), queue.needed
    if timeout.warning and needed is not None and longest < needed:
        raise BrokerRefusedError(
            f"a window holds a message of queue {queue.name} for up to "
            f"{needed.total_seconds():.0f} s (length, lag and idle), and RabbitMQ takes it back "
            f"after {longest.total_seconds():.0f} s: make the window shorter; or "
            f"{timeout.todo}, and set Config(consumer_timeout_secs=…) to that time"
        )
    return timeout.warning if queue.held is not None and allowed < queue.held else ""


def _enough_ms(held: timedelta) -> int:
    return round(max(_DAY, 2 * held) / timedelta(milliseconds=1))

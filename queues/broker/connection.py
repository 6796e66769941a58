"""Short connections to RabbitMQ, with one clear line about each failure; and the rights of a user,
found out without changing anything.

AMQP has no call that returns rights. But RabbitMQ checks them before the arguments of a call, so a
call that is allowed and has an impossible argument is refused for that argument.
"""

from __future__ import annotations

import random
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pika
from pika import exceptions as amqp
from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorException,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import ACCESS_REFUSED
from tiercel.queues.broker.frames import Connection
from tiercel.queues.errors import (
    AccessRefusedError,
    BrokerFailedError,
    BrokerRefusedError,
    BrokerUnavailableError,
    ExchangeMissingError,
    MessageTooLargeError,
    NotTrustedError,
    QueueMissingError,
    QueuesError,
)

_BLOCKED_TIMEOUT_S = 30

_NOT_FOUND = 404
_NOT_ALLOWED = 530
_INTERNAL_ERROR = 541
# Reply codes that are not our fault: no consumer just now, shutting down, channel error, internal
# error.
_TRANSIENT = (313, 320, 504, _INTERNAL_ERROR)

_LOGIN = (
    "RabbitMQ at {at} refused the login of user {user!r}; check user and password in the AMQP URL"
)
_VHOST = (
    "RabbitMQ at {at} refused the virtual host {vhost!r} to user {user!r}; create it or grant "
    "access"
)
_LIMIT = "RabbitMQ at {at} refused the connection: {said}; end other ones or raise the limit"
_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], type[QueuesError], str], ...] = (
    ((amqp.AuthenticationError,), AccessRefusedError, _LOGIN),
    (
        # A server that hangs up before it has read all may leave a reset or a broken pipe, in place
        # of its own reason.
        (
            amqp.IncompatibleProtocolError,
            ssl.SSLEOFError,
            ssl.SSLZeroReturnError,
            ConnectionResetError,
            BrokenPipeError,
        ),
        BrokerUnavailableError,
        (
            "what listens at {at} hung up without a greeting; wait if it is starting, else check "
            "the port, amqp or amqps, and whether it demands a certificate: ?certfile=…&keyfile=…"
        ),
    ),
    (
        (ssl.SSLCertVerificationError,),
        NotTrustedError,
        (
            "the certificate of RabbitMQ at {at} is not trusted ({what}); add "
            "?cafile=/path/to/ca.pem, correct the host name, or renew it if it has expired"
        ),
    ),
    (
        (ssl.SSLError, amqp.ProtocolSyntaxError),
        BrokerRefusedError,
        (
            "what answers at {at} does not speak this protocol; check the port, and whether it is "
            "amqp or amqps"
        ),
    ),
    (
        (socket.gaierror,),
        BrokerUnavailableError,
        "the host name in {at} is not known; check the AMQP URL",
    ),
    (
        (ConnectionRefusedError,),
        BrokerUnavailableError,
        "nothing listens at {at}; start RabbitMQ or correct the AMQP URL",
    ),
    (
        (amqp.ConnectionBlockedTimeout,),
        BrokerUnavailableError,
        "RabbitMQ at {at} takes no messages now (memory or disk alarm); free some, then try again",
    ),
)

# Refusals of access that no permission ends, by RabbitMQ's words.
_REFUSALS = (
    ("in exclusive use", "another client consumes it with exclusive set: end that client"),
    ("reserved prefix", "names that begin with amq. are RabbitMQ's own: choose another name"),
)

# To a basic.get; the queue's other consumers get nothing either.
_HELD_BACK = (
    "the messages go to the queue's active consumer only: end or pause it (tiercel deactivate), "
    "then try again"
)

# RabbitMQ 3.10 has no "is".
_TOO_LARGE = re.compile(r"message size (\d+) (?:is )?larger than (?:configured )?max size (\d+)")

_SAID = re.compile(r"ConnectionClosedByBroker: \((\d+)\) (.*)")

# pika ends the texts of its timeouts with the host, and the address as Python shows it.
_PLACE = re.compile(r"(:| to)? ?'[^']*'/\(<.*")

_PIKA_ERRORS = (amqp.AMQPError, AMQPConnectorException, OSError)


def backoff_s(attempt: int) -> float:
    """Return the seconds to wait after attempt number ``attempt`` to connect: 0.1, 0.2, 0.4 … 2,
    plus up to 0.1 at random, so that many clients do not connect at one time.
    """
    # A broker takes longer than 2 s to start, and a waiting client should connect soon after that.
    return min(2.0, 0.1 * 2.0 ** min(attempt - 1, 10)) + random.uniform(0, 0.1)


@contextmanager
def connected(address: Address, name: str, patience: timedelta = timedelta(0)) -> Iterator[Any]:
    """Yield a pika ``BlockingConnection``, closed at the end.

    Translates everything that pika raises inside.

    Tries again for ``patience`` while RabbitMQ does not answer. Raises BrokerUnavailableError,
    BrokerRefusedError.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(BrokerUnavailableError),
        stop=stop_after_delay(patience),
        wait=lambda state: backoff_s(state.attempt_number),
        reraise=True,
    )
    connection = retrying(connect, address, name)
    try:
        with translated(address):
            yield connection
    finally:
        if connection.is_open:
            with suppress(amqp.AMQPError):  # broken while closing: there is nothing left to close
                connection.close()


def connect(address: Address, name: str, patience_s: float | None = None) -> Any:
    """Return a pika ``BlockingConnection``; raises BrokerUnavailableError, BrokerRefusedError.

    ``patience_s`` is how long each host may take to accept it.
    """
    parameters = address.parameters(name)
    for each in parameters:
        each.blocked_connection_timeout = _BLOCKED_TIMEOUT_S
        if patience_s is not None:
            each.socket_timeout = each.stack_timeout = patience_s
    with translated(address):
        return pika.BlockingConnection(parameters, _impl_class=Connection)


@contextmanager
def answered(connection: Any, patience_s: float) -> Iterator[None]:
    """End an open connection if the block waits longer: a server that has fallen silent would hold
    it for two heartbeats.
    """
    # The timers of the connection itself run only while it consumes.
    link = connection._impl  # noqa: SLF001 - pika has no time limit for calls
    silent = amqp.AMQPConnectionError(f"no answer for {patience_s:g} s")
    timer = link.ioloop.call_later(patience_s, lambda: link._terminate_stream(silent))  # noqa: SLF001
    try:
        yield
    finally:
        if connection.is_open:
            link.ioloop.remove_timeout(timer)


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Translate everything that pika raises inside."""
    try:
        yield
    except _PIKA_ERRORS as error:
        raise translate(error, address) from error


def translate(error: BaseException, address: Address) -> QueuesError:
    """Translate a pika or socket error into ours. Chain the result to it with ``from``."""
    if isinstance(error, QueuesError):
        return error
    cause = _root(error)
    if isinstance(cause, amqp.ConnectionClosed | amqp.ChannelClosed):
        return _closed(cause.reply_code, cause.reply_text, address)
    if isinstance(cause, amqp.ProbableAuthenticationError | amqp.ProbableAccessDeniedError):
        # pika guesses these errors from the moment at which the connection broke. If RabbitMQ
        # refused, its reply is in the text; without a reply, the connection just broke.
        said = _SAID.search(str(cause))
        if said is not None:
            return _closed(int(said[1]), said[2], address)
    for kinds, make, message in _MEANINGS:
        if isinstance(cause, kinds):
            return make(
                message.format(
                    at=address, user=address.user, vhost=address.vhost, what=_brief(cause)
                )
            )
    return BrokerUnavailableError(
        f"RabbitMQ at {address} did not answer ({_brief(cause)}); check that it runs and is "
        "reachable"
    )


def _closed(code: int, text: str, address: Address) -> QueuesError:
    if code == ACCESS_REFUSED and "login" in text.lower():
        return AccessRefusedError(_LOGIN.format(at=address, user=address.user))
    if code == _NOT_ALLOWED:
        refused = _LIMIT if " limit " in text else _VHOST
        return AccessRefusedError(
            refused.format(at=address, user=address.user, vhost=address.vhost, said=_line(text))
        )
    if code == _NOT_FOUND:
        missing = ExchangeMissingError if "no exchange" in text else QueueMissingError
        return missing(
            f"RabbitMQ at {address} says: {_line(text)}; declare it first or correct the name"
        )
    if code in _TRANSIENT:
        make = BrokerFailedError if code == _INTERNAL_ERROR else BrokerUnavailableError
        return make(f"RabbitMQ at {address} closed the connection: {_line(text)}")
    if code == ACCESS_REFUSED:
        todo = next((todo for said, todo in _REFUSALS if said in text), "grant the permission")
        return AccessRefusedError(
            f"user {address.user!r} may not do this on {address}: {_line(text)}; {todo}"
        )
    todo = f"; {_HELD_BACK}" if "single active consumer" in text else ""
    return _too_large(text, address) or BrokerRefusedError(
        f"RabbitMQ at {address} refused: {_line(text)}{todo}"
    )


def _too_large(text: str, address: Address) -> MessageTooLargeError | None:
    if (sizes := _TOO_LARGE.search(text)) is None:
        return None
    size, most = map(int, sizes.groups())
    return MessageTooLargeError(
        f"RabbitMQ at {address} takes no message of {size:,} bytes: its max_message_size is "
        f"{most:,}; raise it in rabbitmq.conf"
    )


def _root(error: BaseException) -> BaseException:
    """Return the innermost error: each layer of pika wraps errors in its own way."""
    while True:
        if isinstance(error, AMQPConnectionWorkflowFailed):
            inner = error.exceptions[-1]
        elif isinstance(error, AMQPConnectorException):
            inner = getattr(error, "exception", None)
        else:
            inner = (
                error.args[0]
                if type(error) is amqp.AMQPConnectionError and error.args
                else error.__cause__
            )
        if not isinstance(inner, BaseException):
            return error
        error = inner


def _brief(error: BaseException) -> str:
    return _PLACE.sub("", _line(str(error) or type(error).__name__))


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def refused_to_declare(connection: Any, address: Address, queue: str) -> str:
    """Return why the user may not declare this work queue or delay queue; empty: it may.

    If the queue is missing, this includes reading it, and publishing to the default exchange.
    """
    arguments = {"x-message-ttl": -1, "x-dead-letter-exchange": ""}
    return _refused(
        connection,
        address,
        lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments),
    )


def refused_to_dead_letter(connection: Any, address: Address, dead: str) -> str:
    """Return why this dead-letter queue is missing and the user may not declare it; empty: a copy
    can get into it.
    """
    if refused := refused_to_declare(connection, address, dead):
        channel = connection.channel()
        with translated(address):
            try:
                channel.queue_declare(dead, passive=True)
            except amqp.ChannelClosedByBroker:
                return refused
            channel.close()
    return ""


def refused_to_read(connection: Any, address: Address, queue: str) -> str:
    """Return why the user may not consume from this queue, which exists; empty: it may."""
    return _refused(
        connection,
        address,
        lambda channel: channel.basic_consume(
            queue, lambda *_: None, arguments={"x-priority": "none"}
        ),
    )


def refused_to_publish(connection: Any, address: Address, exchange: str = "") -> str:
    """Return why the user may not publish to this exchange; empty: it may.

    Raises ExchangeMissingError.
    """

    def publish(channel: Any) -> None:
        channel.confirm_delivery()
        # RabbitMQ refuses a message with such an expiration before it routes it.
        properties = pika.BasicProperties(expiration="none")
        key = f"tiercel-check-{secrets.token_hex(8)}"
        channel.basic_publish(exchange, key, b"", properties, mandatory=True)

    return _refused(connection, address, publish)


def refused_to_bind(connection: Any, address: Address, queue: str, exchange: str) -> str:
    """Return why the user may not bind the queue to the exchange; both exist; empty: it may."""
    key = f"tiercel-check-{secrets.token_hex(8)}"
    # Removing a binding needs the rights that adding it does, and this one does not exist.
    return _refused(connection, address, lambda channel: channel.queue_unbind(queue, exchange, key))


def _refused(connection: Any, address: Address, call: Callable[[Any], object]) -> str:
    channel = connection.channel()
    with translated(address):
        try:
            call(channel)
        except amqp.ChannelClosedByBroker as error:
            meant = translate(error, address)
            if isinstance(meant, ExchangeMissingError):
                raise meant from error
            return str(meant) if error.reply_code == ACCESS_REFUSED else ""
        channel.close()
    return ""

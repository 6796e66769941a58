"""Translation of RabbitMQ's and the network's errors."""

import socket
import ssl

import pytest
from pika import exceptions as amqp
from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorAMQPHandshakeError,
    AMQPConnectorStackTimeout,
)

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import backoff_s, translate
from tiercel.queues.errors import (
    AccessRefusedError,
    BrokerFailedError,
    BrokerRefusedError,
    BrokerUnavailableError,
    MessageTooLargeError,
    NotTrustedError,
    QueueMissingError,
)

ADDRESS = Address.parse("amqp://me:hush@host/v")

LOGIN = amqp.ConnectionClosedByBroker(
    403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
)
VHOST = amqp.ConnectionClosedByBroker(530, "NOT_ALLOWED - vhost v not found")
LIMIT = amqp.ConnectionClosedByBroker(
    530, "NOT_ALLOWED - access to vhost 'v' refused for user 'me': connection limit (9) is reached"
)
SHUTDOWN = amqp.ConnectionClosedByBroker(320, "CONNECTION_FORCED - shutdown")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ConnectionRefusedError(), BrokerUnavailableError, "nothing listens"),
        (socket.gaierror(-2, "unknown"), BrokerUnavailableError, "host name"),
        (TimeoutError(), BrokerUnavailableError, "did not answer"),
        (amqp.StreamLostError("reset"), BrokerUnavailableError, "did not answer"),
        (SHUTDOWN, BrokerUnavailableError, "shutdown"),
        (
            amqp.ChannelClosedByBroker(541, "INTERNAL_ERROR"),
            BrokerFailedError,
            "INTERNAL_ERROR",
        ),
        (amqp.ConnectionBlockedTimeout(), BrokerUnavailableError, "alarm"),
        (amqp.ProbableAuthenticationError(repr(LOGIN)), AccessRefusedError, "login of user 'me'"),
        (
            amqp.ProbableAuthenticationError(repr(amqp.StreamLostError("x"))),
            BrokerUnavailableError,
            "did not answer",
        ),
        (amqp.ProbableAccessDeniedError(repr(VHOST)), AccessRefusedError, "virtual host 'v'"),
        (amqp.ProbableAccessDeniedError(repr(SHUTDOWN)), BrokerUnavailableError, "shutdown"),
        (LOGIN, AccessRefusedError, "login of user 'me'"),
        (VHOST, AccessRefusedError, "virtual host 'v'"),
        (LIMIT, AccessRefusedError, "connection limit (9) is reached; end other ones"),
        (
            amqp.ProbableAccessDeniedError(repr(LIMIT)),
            AccessRefusedError,
            "connection limit (9) is reached",
        ),
        (
            amqp.ChannelClosedByBroker(403, "ACCESS_REFUSED - access to queue"),
            AccessRefusedError,
            "permission",
        ),
        (
            amqp.ChannelClosedByBroker(403, "ACCESS_REFUSED - queue 'q' in exclusive use"),
            AccessRefusedError,
            "exclusive use; another client consumes it with exclusive set: end that client",
        ),
        (
            amqp.ChannelClosedByBroker(
                403, "ACCESS_REFUSED - queue name 'amq.q' contains reserved prefix 'amq.*'"
            ),
            AccessRefusedError,
            "names that begin with amq. are RabbitMQ's own: choose another name",
        ),
        (
            amqp.ChannelClosedByBroker(404, "NOT_FOUND - no queue 'q'"),
            QueueMissingError,
            "no queue 'q'",
        ),
        (
            amqp.ChannelClosedByBroker(406, "PRECONDITION_FAILED - x"),
            BrokerRefusedError,
            "PRECONDITION_FAILED",
        ),
        (
            amqp.ChannelClosedByBroker(
                406,
                "PRECONDITION_FAILED - message size 2000 is larger than configured max size 1000",
            ),
            MessageTooLargeError,
            "no message of 2,000 bytes: its max_message_size is 1,000; raise it in rabbitmq.conf",
        ),
        (
            amqp.ChannelClosedByBroker(
                406, "PRECONDITION_FAILED - message size 20 larger than max size 10"
            ),
            MessageTooLargeError,
            "no message of 20 bytes: its max_message_size is 10",
        ),
        (amqp.IncompatibleProtocolError("x"), BrokerUnavailableError, "check the port"),
        (amqp.ProtocolSyntaxError("x"), BrokerRefusedError, "check the port"),
        (ssl.SSLEOFError(8, "EOF"), BrokerUnavailableError, "check the port"),
        (ssl.SSLEOFError(8, "EOF"), BrokerUnavailableError, "demands a certificate: ?certfile="),
        (ConnectionResetError(104, "reset"), BrokerUnavailableError, "demands a certificate"),
        (BrokenPipeError(32, "broken pipe"), BrokerUnavailableError, "demands a certificate"),
        (ssl.SSLCertVerificationError(1, "self signed"), NotTrustedError, "cafile"),
        (ssl.SSLCertVerificationError(1, "has expired"), NotTrustedError, "or renew it"),
        (ssl.SSLError(1, "wrong version"), BrokerRefusedError, "amqps"),
    ],
)
def test_each_error_says_what_to_do(error, kind, says):
    wrapped = amqp.AMQPConnectionError(
        AMQPConnectionWorkflowFailed([AMQPConnectorAMQPHandshakeError(error)])
    )
    for raised in (error, wrapped):
        translated = translate(raised, ADDRESS)
        assert type(translated) is kind
        assert says in str(translated)
        assert "hush" not in str(translated)
        assert "\n" not in str(translated)


def test_our_own_errors_stay_as_they_are():
    error = QueueMissingError("x")
    assert translate(error, ADDRESS) is error


def test_waits_grow_up_to_two_seconds():
    waits = [backoff_s(attempt) for attempt in range(1, 12)]
    assert 0.1 <= waits[0] <= 0.2
    assert waits[:5] == sorted(waits[:5])
    assert all(2 <= wait <= 2.1 for wait in waits[5:])


@pytest.mark.parametrize(
    "said",
    [
        "Timeout during AMQP handshake",
        "Timeout while setting up AMQP to ",
        "TCP connection attempt timed out: ",
    ],
)
def test_a_timeout_is_told_without_an_address_in_python(said):
    place = "'host'/(<AddressFamily.AF_INET: 2>, <SocketKind.SOCK_STREAM: 1>, 6, '', ('::1', 1))"
    error = AMQPConnectorStackTimeout(f"{said}{place}; ssl=False")
    assert str(translate(error, ADDRESS)) == (
        f"RabbitMQ at {ADDRESS} did not answer ({said.removesuffix(' to ').removesuffix(': ')}); "
        "check that it runs and is reachable"
    )

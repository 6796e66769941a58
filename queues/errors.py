"""Errors that the queues raise.

QueuesError
├── SchemaError              a DDL string that cannot be read
├── AddressError             an AMQP URL that cannot be read
├── BadBodyError             a message whose body does not decode or does not fit the schema: a
                             permanent failure
├── BadPropertyError         a property of a message that is invalid, or cannot be written
├── BrokerUnavailableError   RabbitMQ did not answer: try again
│   └── BrokerFailedError    RabbitMQ closed the connection because of an error of its own
├── BrokerRefusedError       RabbitMQ refused (login, vhost, permission, arguments):
                             a person must act
│   ├── PassingRefusalError  another person may be changing it
│   │   ├── AccessRefusedError    a login, a vhost or a permission was refused
│   │   ├── NotTrustedError       the server's certificate is not valid, or of no known authority
│   │   ├── QueueMissingError     there is no such queue
│   │   └── ExchangeMissingError  there is no such exchange
│   ├── PublishRefusedError  a message was returned as unroutable, or not accepted
│   │   └── NackedError      the broker nacked it: try again
│   └── ServerTooOldError    this RabbitMQ lacks what tiercel needs
└── MessageTooLargeError     above the size limit, tiercel's or RabbitMQ's
"""


class QueuesError(Exception):
    """An error of the broker side."""


class SchemaError(QueuesError, ValueError):
    """The DDL of a stream cannot be read."""


class AddressError(QueuesError, ValueError):
    """The address of the broker cannot be read; the message never holds the password."""


class BadBodyError(QueuesError, ValueError):
    """The body of a message does not fit its schema, and never will."""


class BadPropertyError(QueuesError, ValueError):
    """A property of a message has an invalid value, or cannot be written; retrying cannot help."""


class BrokerUnavailableError(QueuesError):
    """RabbitMQ did not answer, or the connection broke; the call may be repeated."""


class BrokerFailedError(BrokerUnavailableError):
    """RabbitMQ closed the connection because of an error of its own: it may be in trouble, or one
    message makes it fail.
    """


class BrokerRefusedError(QueuesError):
    """RabbitMQ refused the call; repeating it does not help until an operator changes something."""


class PassingRefusalError(BrokerRefusedError):
    """RabbitMQ refused a call that it may accept again soon: a password is being changed, a server
    that checks logins is away, a certificate is renewed, or the owner of a queue declares it anew.
    """

    # An outage with this error is logged even if the server was away before.
    refused = True


class AccessRefusedError(PassingRefusalError):
    """RabbitMQ refused a login, a virtual host or a permission."""


class NotTrustedError(PassingRefusalError):
    """The certificate of RabbitMQ is not valid, or no authority that we trust has issued it; it may
    be renewed soon.
    """


class QueueMissingError(PassingRefusalError):
    """There is no queue of this name."""


class ExchangeMissingError(PassingRefusalError):
    """There is no exchange of this name."""


class PublishRefusedError(BrokerRefusedError):
    """The broker did not take a message; ``index`` is its position in the batch."""

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index


class NackedError(PublishRefusedError):
    """The broker nacked a message: its queue is full or has no leader; publish it again."""


class ServerTooOldError(BrokerRefusedError):
    """The server is older than what tiercel needs; upgrade it."""


class MessageTooLargeError(QueuesError):
    """A message is larger than 16 MiB, the limit of tiercel, or than RabbitMQ's
    ``max_message_size``.
    """

"""Options of the source and of the sink, read strictly: an unknown option is an error, since a typo
would otherwise silently give the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

from tiercel.frames.errors import OptionError
from tiercel.queues.broker.address import Address
from tiercel.queues.errors import QueuesError
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.retry import DELIVERY_LIMIT, QUEUE_BYTES, is_queue_name
from tiercel.queues.values.formats import Format

# A batch is in memory several times: in the reader, in the driver's JVM, in the tasks.
_BATCH_BYTES = 64 * 1024 * 1024
_BATCH_MESSAGES = 30_000
# Arrow's columns of bytes end at 2 GiB, and a batch may have more bytes than its bound.
_MOST_BYTES = 1024 * 1024 * 1024
# AMQP's field has 16 bits.
_LARGEST_PREFETCH = 65_535
_MOST_PARTITIONS = 1_000

_SOURCE = (
    "url",
    "queue",
    "fields",
    "bodyFormat",
    "columnNameOfCorruptRecord",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "partitions",
    "deliveryLimit",
)
_SINK = ("url", "queue", "exchange", "routingKey", "mandatory", "unroutableQueue")
# Options of every stream writer, which Spark passes on to the sink.
_SPARKS = ("checkpointlocation", "queryname")


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Settings of a reader."""

    address: Address
    # Includes the password.
    url: str = field(repr=False)
    queues: tuple[str, ...]
    # Typed columns instead of the body, in Spark's DDL.
    fields: str | None
    body_format: Format | None
    # Column for the body of a message that does not fit the fields.
    corrupt_column: str | None
    max_messages: int
    max_bytes: int
    # True if the user set one of the two bounds above.
    is_bounded: bool
    # Spark partitions per batch, at least, if there are as many messages.
    partitions: int
    delivery_limit: int

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options; raises OptionError."""
        given = _Given(options, _SOURCE, "read")
        fields = given.get("fields")
        if fields is not None and not fields.strip():
            raise OptionError("fields names the columns of a body, as in 'id long, name string'")
        body_format = given.get("bodyFormat")
        if body_format is not None and body_format not in get_args(Format):
            raise OptionError(f"bodyFormat is text, json or bytes, not {body_format[:50]!r}")
        if body_format is not None and fields is None:
            raise OptionError("bodyFormat needs fields: it says how to read them from a body")
        corrupt_column = given.get("columnNameOfCorruptRecord")
        if corrupt_column is not None and fields is None:
            raise OptionError("columnNameOfCorruptRecord needs fields: any body fits without them")
        if corrupt_column is not None and (not corrupt_column.strip() or "`" in corrupt_column):
            raise OptionError(f"columnNameOfCorruptRecord is a name, not {corrupt_column[:50]!r}")
        max_messages = given.number("maxMessagesPerTrigger", None, 1, 1_000_000_000)
        max_bytes = given.number("maxBytesPerTrigger", None, 1, _MOST_BYTES)
        return cls(
            address=given.address(),
            url=given.required("url"),
            queues=_queues(given.required("queue")),
            fields=fields,
            body_format=cast("Format | None", body_format),
            corrupt_column=corrupt_column,
            max_messages=max_messages or _BATCH_MESSAGES,
            max_bytes=max_bytes or _BATCH_BYTES,
            is_bounded=(max_messages or max_bytes) is not None,
            partitions=given.number("partitions", 1, 1, _MOST_PARTITIONS) or 1,
            delivery_limit=given.number("deliveryLimit", DELIVERY_LIMIT, 1, 1_000_000) or 1,
        )

    @property
    def prefetch(self) -> int:
        """Bound on the messages that a consumer holds: of one batch, and of the next, which
        arrive while the first is processed.
        """
        return min(_LARGEST_PREFETCH, 2 * self.max_messages)

    @property
    def bytes_held(self) -> int:
        """Approximate bound on the bytes that a consumer holds."""
        return max(2 * self.max_bytes, MAX_BODY_BYTES)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Settings of a writer. None: the value is in a column of the row."""

    address: Address
    # Includes the password.
    url: str = field(repr=False)
    exchange: str | None
    routing_key: str | None
    # False: RabbitMQ drops messages that it cannot route.
    mandatory: bool
    # Queue for messages that could not be routed; None: such a row fails the batch.
    unroutable_queue: str | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options; raises OptionError."""
        given = _Given(options, _SINK, "write")
        queue = given.get("queue")
        exchange = given.get("exchange")
        routing_key = given.get("routingKey")
        if queue is not None and (exchange is not None or routing_key is not None):
            raise OptionError(
                "queue goes by the default exchange: write either queue, or exchange and routingKey"
            )
        mandatory = given.flag("mandatory", default=True)
        unroutable_queue = given.get("unroutableQueue")
        if unroutable_queue is not None and not mandatory:
            raise OptionError(
                "with mandatory=false RabbitMQ does not report messages that it cannot route"
            )
        return cls(
            address=given.address(),
            url=given.required("url"),
            exchange="" if queue is not None else exchange,
            routing_key=routing_key if queue is None else queue,
            mandatory=mandatory,
            unroutable_queue=unroutable_queue,
        )


class _Given:
    """The given options. Their names ignore case, as Spark's dictionary does."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], verb: str) -> None:
        lower = {name.lower(): value for name, value in options.items()}
        self._options = {name: value for name, value in lower.items() if name not in _SPARKS}
        if "provider" in self._options:
            # The catalog's own property. Later Spark would read the table without its options.
            raise OptionError(
                "rabbitmq is no table, because Spark keeps no options for one: write CREATE "
                "TEMPORARY VIEW … USING rabbitmq OPTIONS (…) to read a queue in SQL"
            )
        spelled = {name.lower(): name for name in known}
        for name in self._options:
            if name not in spelled:
                raise OptionError(
                    f"there is no option {name[:50]!r} to {verb} rabbitmq with; the options are "
                    f"{', '.join(spelled.values())}"
                )

    def get(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def required(self, name: str) -> str:
        value = self.get(name)
        if not value:
            example = "amqp://user:password@host:5672/vhost" if name == "url" else "orders"
            raise OptionError(f'rabbitmq needs option("{name}", …), such as {example}')
        return value

    def address(self) -> Address:
        try:
            return Address.parse(self.required("url"))
        except QueuesError as error:
            raise OptionError(f"url: {error}") from error

    def number(self, name: str, default: int | None, least: int, most: int) -> int | None:
        text = self.get(name)
        if text is None:
            return default
        if not text.isdecimal() or not least <= int(text[:20]) <= most:
            raise OptionError(
                f"{name} is a whole number from {least:,} to {most:,}, not {text[:50]!r}"
            )
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name} is true or false, not {text[:50]!r}")
        return text.lower() == "true"


def _queues(text: str) -> tuple[str, ...]:
    """Read one name, several separated by commas, or a JSON array for names with commas."""
    names: object = [name.strip() for name in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise OptionError(f"queue begins as a JSON array, but is none: {error}") from error
    if not isinstance(names, list) or not names or not all(map(is_queue_name, names)):
        raise OptionError(
            f"queue is a name of 1 to {QUEUE_BYTES} bytes without line breaks, or several with "
            f"commas between, not {text[:50]!r}"
        )
    if len(set(names)) != len(names):
        raise OptionError(f"queue names one queue twice: {text[:200]!r}")
    return tuple(names)

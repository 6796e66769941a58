"""From a row to a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from tiercel.frames.columns import BODY, DELIVERY
from tiercel.frames.errors import OptionError, RowError
from tiercel.frames.options import SinkOptions
from tiercel.queues.errors import BadPropertyError
from tiercel.queues.message.outgoing import OutgoingMessage
from tiercel.queues.message.properties import PROPERTIES
from tiercel.queues.message.writing import WRITTEN, write_properties
from tiercel.queues.values.bodies import plain_body

_EXCHANGE = "exchange"
_ROUTING_KEY = "routing_key"
_MESSAGE_ID = "message_id"
_TARGET = (_EXCHANGE, _ROUTING_KEY)
# Columns of the source that tell how a message arrived: the sink passes over them, so that a query
# may write what it read.
_OF_ARRIVAL = ({*PROPERTIES} - {*WRITTEN} - {*_TARGET}) | {DELIVERY}


class RowsToMessages:
    """Makes messages of rows: a column ``body``, and columns named as properties."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises OptionError for a column that a message does not have, and if it is not said
        where messages go.
        """
        names = schema.fieldNames()
        if BODY not in names:
            raise OptionError(f"rabbitmq writes a column {BODY!r}, a string or binary; add one")
        known = {BODY, *_TARGET, *WRITTEN, *_OF_ARRIVAL}
        for name in names:
            if name not in known:
                raise OptionError(
                    f"a message has no {name[:50]!r}: select {BODY}, and of its properties "
                    f"{', '.join([*_TARGET, *WRITTEN])}"
                )
        self._exchange = options.exchange
        self._routing_key = options.routing_key
        self._mandatory = options.mandatory
        for target, given in zip(_TARGET, (self._exchange, self._routing_key), strict=True):
            if given is None and target not in names:
                raise OptionError(
                    'rabbitmq needs to know where rows go: option("queue", …), or exchange and '
                    f"routing key as options or columns; there is no {target}"
                )
        self._properties = [name for name in names if name in WRITTEN]

    def messages(
        self, batches: Iterable[pa.RecordBatch], identity: Callable[[int], str]
    ) -> Iterator[OutgoingMessage]:
        """Return a message per row, in order; ``identity`` gives the id of a row that has none.

        Raises RowError.
        """
        row = 0
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in self._columns_of(batch)}
            for at in range(batch.num_rows):
                yield self._message(columns, at, identity(row), row)
                row += 1

    def _columns_of(self, batch: pa.RecordBatch) -> Sequence[str]:
        return [name for name in batch.schema.names if name not in _OF_ARRIVAL]

    def _message(
        self, columns: dict[str, list[Any]], at: int, name: str, row: int
    ) -> OutgoingMessage:
        values = {each: columns[each][at] for each in self._properties}
        if values.get(_MESSAGE_ID) is None:
            values[_MESSAGE_ID] = name
        headers = values.get("headers")
        if headers is not None:
            values["headers"] = dict(headers)
        exchange = columns[_EXCHANGE][at] if self._exchange is None else self._exchange
        routing_key = columns[_ROUTING_KEY][at] if self._routing_key is None else self._routing_key
        body = columns[BODY][at]
        if exchange is None or routing_key is None or body is None:
            raise RowError(
                f"row {row + 1} has no body, no exchange or no routing key: null is none of these"
            )
        try:
            properties = write_properties(values)
        except BadPropertyError as error:
            raise RowError(f"row {row + 1} cannot be a message: {error}") from error
        return OutgoingMessage(
            body=plain_body(body),
            routing_key=routing_key,
            exchange=exchange,
            properties=properties,
            mandatory=self._mandatory,
        )

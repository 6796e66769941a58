"""A spout that a test feeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any

from tiercel.queues.errors import SchemaError
from tiercel.queues.message.identity import Identified
from tiercel.queues.message.properties import PropertyColumns
from tiercel.queues.schema import Schema
from tiercel.queues.spout import MsgId, Spout, SpoutCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.errors import (
    BadValuesError,
    DirectStreamError,
    TopologyError,
    UnknownStreamError,
)

# Values, message id, stream, task, identity.
_Fed = tuple[list[Any], MsgId | None, str, int | None, Identified | None]


class FeederSpout(Spout):
    """Emits what it is fed, in order.

    It replays nothing: what failed is in ``LocalCluster.failed``, feed it again.

    The object in the topology is the one that runs, so that a test can go on feeding it; with a
    parallelism above 1 its tasks share it.
    """

    def __init__(
        self,
        fields: str = "",
        *,
        properties: Sequence[str] | Mapping[str, str] = (),
        streams: Mapping[str, str] = MappingProxyType({}),
        direct_streams: AbstractSet[str] = frozenset(),
    ) -> None:
        """``fields`` is the default stream's DDL, ``streams`` are named ones.

        ``properties`` adds the columns of a QueueSpout's to the default stream. Raises
        TopologyError without fields and streams, SchemaError.
        """
        if not fields and not streams:
            raise TopologyError(
                'a FeederSpout needs fields, such as FeederSpout(fields="word string")'
            )
        self._properties = PropertyColumns.of(properties)
        self.output_fields = self._properties.after(fields) if fields else ""
        # Of the default stream, without the properties.
        self._width = len(Schema.parse(fields).fields) if fields else 0
        self.output_streams = dict(streams)
        self.direct_streams = frozenset(direct_streams)
        self._fed: deque[_Fed] = deque()

    def feed(  # noqa: PLR0913, PLR0917 - a test names what it needs
        self,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        properties: Mapping[str, Any] = MappingProxyType({}),
        identity: Identified | None = None,
    ) -> None:
        """Emit this at the next ``run_until_idle``; without a ``msg_id`` it is not tracked.

        ``task`` is for direct streams. ``properties`` are values of the feeder's properties by
        name, behind ``values``; those that are not given are null. ``identity`` is what the message
        is known by, from which the keys of its tuples follow.

        Raises BadValuesError, UnknownStreamError, and DirectStreamError for a task too many or too
        few, here and not in ``run_until_idle``.
        """
        values = self._with_properties(values, stream, properties)
        self._check(values, stream)
        if (task is not None) != (stream in self.direct_streams):
            what = "is not direct: name no task" if task is not None else "is direct: name the task"
            raise DirectStreamError(f"stream {stream!r} of the feeder {what}")
        self._fed.append((list(values), msg_id, stream, task, identity))

    def next_tuple(self, collector: SpoutCollector) -> None:
        if self._fed:
            values, msg_id, stream, task, identity = self._fed.popleft()
            if task is None:
                collector.emit(values, msg_id, stream, identity)
            else:
                collector.emit_direct(task, values, msg_id, stream, identity)

    def __deepcopy__(self, memo: dict[int, Any]) -> FeederSpout:
        """Itself: the test holds on to it."""
        return self

    def _with_properties(
        self, values: Sequence[Any], stream: str, properties: Mapping[str, Any]
    ) -> Sequence[Any]:
        if not isinstance(values, (list, tuple)) or not (properties or self._properties.columns):
            return values
        if stream != DEFAULT_STREAM or (len(values) != self._width and not properties):
            # They stand among the values, or there are none.
            return values
        try:
            return [*values, *self._properties.values(properties)]
        except SchemaError as error:
            raise BadValuesError(f"fed to stream {stream!r}: {error}") from error

    def _check(self, values: Sequence[Any], stream: str) -> None:
        declared = {
            **self.output_streams,
            **({DEFAULT_STREAM: self.output_fields} if self.output_fields else {}),
        }
        if stream not in declared:
            raise UnknownStreamError(
                f"the feeder has no stream {stream!r}; its streams are {', '.join(declared)}"
            )
        schema = Schema.parse(declared[stream])
        if not isinstance(values, (list, tuple)) or len(values) != len(schema.names):
            raise BadValuesError(
                f"fed {values!r:.80}; give a list with one value for each of ({schema})"
            )
        try:
            schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"fed to stream {stream!r}: {error}") from error

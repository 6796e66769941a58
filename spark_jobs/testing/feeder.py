"""A spout that a test feeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from queues import MsgId, Schema, Spout, SpoutCollector
from queues.errors import SchemaError
from spark_jobs.bolt import DEFAULT_STREAM
from spark_jobs.errors import BadValuesError, TopologyError, UnknownStreamError


class FeederSpout(Spout):
    """Emits what it is fed, in order. It replays nothing: what failed is in ``LocalCluster.failed``, feed it again.

    The object in the topology is the one that runs, so that a test can go on feeding it; with a parallelism above 1 its
    tasks share it.
    """

    def __init__(self, fields: str = "", *, streams: Mapping[str, str] = MappingProxyType({})) -> None:
        """``fields`` is the default stream's DDL, ``streams`` are named ones; raises TopologyError without either."""
        if not fields and not streams:
            raise TopologyError('a FeederSpout needs fields, such as FeederSpout(fields="word string")')
        self.output_fields = fields
        self.output_streams = dict(streams)
        self._fed: deque[tuple[list[Any], MsgId | None, str]] = deque()

    def feed(self, values: Sequence[Any], msg_id: MsgId | None = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit this at the next ``settle``; without a ``msg_id`` it is not tracked.

        Raises BadValuesError and UnknownStreamError, here and not in ``settle``.
        """
        self._check(values, stream)
        self._fed.append((list(values), msg_id, stream))

    def next_tuple(self, collector: SpoutCollector) -> None:
        if self._fed:
            values, msg_id, stream = self._fed.popleft()
            collector.emit(values, msg_id, stream)

    def __deepcopy__(self, memo: dict[int, Any]) -> FeederSpout:
        """Itself: the test holds on to it."""
        return self

    def _check(self, values: Sequence[Any], stream: str) -> None:
        declared = {**self.output_streams, **({DEFAULT_STREAM: self.output_fields} if self.output_fields else {})}
        if stream not in declared:
            raise UnknownStreamError(f"the feeder has no stream {stream!r}; its streams are {', '.join(declared)}")
        schema = Schema.parse(declared[stream])
        if not isinstance(values, (list, tuple)) or len(values) != len(schema.names):
            raise BadValuesError(f"fed {values!r:.80}; give a list with one value for each of ({schema})")
        try:
            schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"fed to stream {stream!r}: {error}") from error

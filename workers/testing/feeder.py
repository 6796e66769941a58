"""A spout that a test feeds."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, NamedTuple

from tiercel.queues.errors import SchemaError
from tiercel.queues.message.identity import Identified
from tiercel.queues.message.properties import PropertyColumns
from tiercel.queues.spout import MsgId, Spout, SpoutCollector
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.errors import (
    BadValuesError,
    DirectStreamError,
    TopologyError,
    UnknownStreamError,
)
from tiercel.workers.testing.engine import SimulatedClock


class Fed(NamedTuple):
    """One tuple that was fed."""

    values: list[Any]
    msg_id: MsgId | None
    stream: str
    # The receiving task, on a direct stream.
    task: int | None
    # The identity of its message.
    identity: Identified | None = None


class FeederSpout(Spout):
    """Emits the tuples that a test feeds it, in order.

    It replays nothing: failed tuples are in ``LocalCluster.failed``, and must be fed again. But a
    tuple that a bolt wants later (``RetryLater``) comes again by itself, when
    ``LocalCluster.advance_time`` has reached its time.

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

        ``properties`` adds columns to the default stream, as a QueueSpout's do. Raises
        TopologyError without fields and streams, SchemaError.
        """
        if not fields and not streams:
            raise TopologyError(
                'a FeederSpout needs fields, such as FeederSpout(fields="word string")'
            )
        self._properties = PropertyColumns.of(properties)
        self.output_fields = self._properties.after(fields) if fields else ""
        self.changing_fields = self._properties.changing
        # Number of fields of the default stream, without the properties.
        self._width = len(Schema.parse(fields).fields) if fields else 0
        self.output_streams = dict(streams)
        self.direct_streams = frozenset(direct_streams)
        self._clock: Callable[[], float] = SimulatedClock()
        self._fed: deque[Fed] = deque()
        # Tuples with a message id that are not settled yet.
        self._emitted: dict[MsgId, list[Fed]] = {}
        # A heap of tuples that come again: time, order of request, tuple.
        self._later: list[tuple[float, int, Fed]] = []
        self._asked = 0

    def feed(  # noqa: PLR0913, PLR0917 - a test names what it needs
        self,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        properties: Mapping[str, Any] = MappingProxyType({}),
        identity: Identified | None = None,
    ) -> None:
        """Feed a tuple, to be emitted at the next ``run_until_idle``; without a ``msg_id`` it is
        not tracked.

        ``task`` is for direct streams. ``properties`` are values of the feeder's properties by
        name, appended to ``values``; missing ones are null. ``identity`` is the identity of the
        message, from which the keys of its tuples are derived.

        Raises, already here, BadValuesError, UnknownStreamError, and DirectStreamError if ``task``
        is missing or not allowed.
        """
        values = self._with_properties(values, stream, properties)
        self._check(values, stream)
        if (task is not None) != (stream in self.direct_streams):
            what = "is not direct: name no task" if task is not None else "is direct: name the task"
            raise DirectStreamError(f"stream {stream!r} of the feeder {what}")
        self._fed.append(Fed(list(values), msg_id, stream, task, identity))

    def attach(self, clock: Callable[[], float]) -> None:
        """Use this clock, in seconds."""
        self._clock = clock

    @property
    def next_at(self) -> float | None:
        """Time at which the next message comes again; None: none will."""
        return self._later[0][0] if self._later else None

    def next_tuple(self, collector: SpoutCollector) -> None:
        if self._later and self._later[0][0] <= self._clock():
            fed = heapq.heappop(self._later)[2]
        elif self._fed:
            fed = self._fed.popleft()
        else:
            return
        self._emit(collector, fed)

    def _emit(self, collector: SpoutCollector, fed: Fed) -> None:
        if fed.msg_id is not None:
            self._emitted.setdefault(fed.msg_id, []).append(fed)
        if fed.task is None:
            collector.emit(fed.values, fed.msg_id, fed.stream, fed.identity)
        else:
            collector.emit_direct(fed.task, fed.values, fed.msg_id, fed.stream, fed.identity)

    def ack(self, msg_id: MsgId) -> None:
        self._take(msg_id)

    def fail(self, msg_id: MsgId, reason: str = "") -> None:  # noqa: ARG002 - the cluster keeps it
        self._take(msg_id)

    def retry_later(self, msg_id: MsgId, seconds: float, reason: str, *, blame: bool) -> None:  # noqa: ARG002 - the cluster keeps them
        fed = self._take(msg_id)
        if fed is not None:
            self._asked += 1
            at = round(self._clock() + seconds, 9)
            heapq.heappush(self._later, (at, self._asked, fed))

    def _take(self, msg_id: MsgId) -> Fed | None:
        fed = self._emitted.get(msg_id)
        if not fed:
            return None
        first = fed.pop(0)
        if not fed:
            del self._emitted[msg_id]
        return first

    def __deepcopy__(self, memo: dict[int, Any]) -> FeederSpout:
        """Return itself, because the test holds on to it."""
        return self

    def _with_properties(
        self, values: Sequence[Any], stream: str, properties: Mapping[str, Any]
    ) -> Sequence[Any]:
        if not isinstance(values, (list, tuple)) or not (properties or self._properties.columns):
            return values
        if stream != DEFAULT_STREAM or (len(values) != self._width and not properties):
            # The properties are among the values already, or the stream has none.
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

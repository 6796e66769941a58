"""A spout that a test feeds, and stand-ins for components that need a broker or a database, so that
a test can run a topology unchanged.

A ``QueueSpout`` is fed bodies, which its own decoder reads; a ``QueueSink`` builds its messages and
shows them to the test.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple, TypeVar

from tiercel.queues.broker.frames import read_properties
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.habits import Habits, StandIn
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.message.identity import Identified, identity_reader
from tiercel.queues.message.properties import PropertyColumns
from tiercel.queues.message.writing import OutgoingMessage, write_properties
from tiercel.queues.nouns import kind_of
from tiercel.queues.queue_spout import QueueSpout, refusal_of
from tiercel.queues.retry import NO_WAIT, GiveUp, next_action
from tiercel.queues.spout import MsgId, Spout, SpoutCollector
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.bolt import Bolt
from tiercel.spark_jobs.bolts.collecting import OutputCollector, TopologyContext
from tiercel.spark_jobs.bolts.database_sink import DatabaseSink
from tiercel.spark_jobs.bolts.queue_sink import QueueSink
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt
from tiercel.spark_jobs.database.rows import OTHER_MESSAGE, Row
from tiercel.spark_jobs.errors import (
    BadValuesError,
    DirectStreamError,
    TopologyError,
    UnknownStreamError,
)
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology
from tiercel.workers.testing.engine import LocalClusterError, Seen, SimulatedClock, absent

B = TypeVar("B", QueueSink, DatabaseSink)


class Fed(NamedTuple):
    """A tuple that a test has fed."""

    values: list[Any]
    msg_id: MsgId | None
    stream: str
    # The receiving task, for direct streams.
    task: int | None
    # The identity of its message.
    identity: Identified | None = None


class FeederSpout(Spout):
    """Emits the tuples that a test feeds it, in order.

    It replays no failed tuples: they are in ``LocalCluster.failed``, and must be fed again. A tuple
    that a bolt postponed (``RetryLater``) is emitted again once ``LocalCluster.advance_time``
    reaches its time.

    The object in the topology itself runs, not a copy, so that a test can keep feeding it; with a
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
        """``fields`` is the DDL of the default stream, ``streams`` maps names of others to theirs.

        ``properties`` adds columns to the default stream, as for a QueueSpout. Raises TopologyError
        without fields and streams, SchemaError.
        """
        if not fields and not streams:
            raise TopologyError(
                'a FeederSpout needs fields, such as FeederSpout(fields="word string")'
            )
        # Number of fields of the default stream, without the properties.
        self._width = len(Schema.parse(fields).fields) if fields else 0
        self._properties = PropertyColumns.of(properties)
        self.output_fields = self._properties.after(fields) if fields else ""
        self.changing_fields = self._properties.changing
        self.output_streams = dict(streams)
        self.direct_streams = frozenset(direct_streams)
        self._clock: Callable[[], float] = SimulatedClock()
        self._fed: deque[Fed] = deque()
        # Emitted tuples with a message id but no outcome yet.
        self._emitted: dict[MsgId, list[Fed]] = {}
        # A heap of postponed tuples: time, order of request, tuple.
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
        """Feed a tuple, which is emitted at the next ``run_until_idle``.

        Without a ``msg_id`` it is not tracked. ``task`` is for direct streams. ``properties`` maps
        the feeder's properties to values, which are appended to ``values``; missing ones are null.
        ``identity`` is the identity of the message, from which the keys of its tuples are derived.

        Raises at once BadValuesError, UnknownStreamError, and DirectStreamError if ``task`` is
        missing or not allowed.
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
    def left(self) -> int:
        """Number of fed tuples that were not emitted yet."""
        return len(self._fed)

    @property
    def next_at(self) -> float | None:
        """Time at which the next postponed tuple is emitted; None if there is none."""
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
        """Return itself, because the test holds a reference to it."""
        return self

    def _with_properties(
        self, values: Sequence[Any], stream: str, properties: Mapping[str, Any]
    ) -> Sequence[Any]:
        if not isinstance(values, (list, tuple)) or not (properties or self._properties.columns):
            return values
        if stream != DEFAULT_STREAM or (len(values) != self._width and not properties):
            # The values include the properties already, or the stream has none.
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


# The stream on which a captured sink emits its messages instead of publishing them.
PUBLISHED = "__published"
# Properties that may hold a message's identity or time, see ``queues.message.identity``.
_KNOWN_BY = ("message_id", "headers", "timestamp")
_MESSAGE = Schema.parse("exchange string, routing_key string, properties binary, body binary")
# A name that no user's field can have.
_KEY = replace(Schema.parse("key binary").fields[0], name="__key")


def without_broker(topology: Topology) -> Topology:
    """Return the topology with stand-ins for its queue spouts and queue sinks."""
    spouts = {
        component: replace(spec, spout=BodyFeeder(spec.spout))
        if isinstance(spec.spout, QueueSpout)
        else spec
        for component, spec in topology.spouts.items()
    }
    return _with_sinks(
        replace(topology, spouts=spouts),
        QueueSink,
        lambda spec, sink: replace(
            spec, bolt=CapturedSink(sink), streams={**spec.streams, PUBLISHED: _MESSAGE}
        ),
    )


def _with_sinks(
    topology: Topology, kind: type[B], changed: Callable[[BoltSpec, B], BoltSpec]
) -> Topology:
    """Return the topology with all bolts of this kind changed."""
    bolts = {
        component: changed(spec, spec.bolt) if isinstance(spec.bolt, kind) else spec
        for component, spec in topology.bolts.items()
    }
    return replace(topology, bolts=bolts)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedMessage(OutgoingMessage):
    """A message that a ``QueueSink`` would have published.

    It has ``body``, ``exchange`` (empty for a queue), ``routing_key``, and pika's ``properties``.
    """

    def json(self) -> Any:
        """Return the value of a JSON body. Raises ValueError."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedBody:
    """A body that a ``QueueSpout`` would have dead-lettered, with the reason."""

    body: bytes
    reason: str


class BodyFeeder(FeederSpout, StandIn):
    """Stands in for a ``QueueSpout``: decodes fed bodies with its decoder, and emits them.

    It replays only tuples that a bolt postponed (``RetryLater``), up to the spout's delivery limit.
    """

    def __init__(self, spout: QueueSpout) -> None:
        super().__init__(
            spout.body_fields,
            properties=spout.properties.columns,
            streams=spout.output_streams,
            direct_streams=spout.direct_streams,
        )
        self._decode = spout.decoder()
        self._delivery_limit = spout.queue.delivery_limit
        self.habits = Habits(
            retries_later=True,
            takes_back=False,
            back_off_s=0.0,
            retry=spout.queue.retry,
            delivery_limit=self._delivery_limit,
        )
        # Failures of postponed messages so far, by message id.
        self._failures: Counter[MsgId] = Counter()
        known_by = spout.identity
        # If the identity includes the publisher's user, it is the broker's default user.
        self._by_user = not isinstance(known_by, str | None)
        self._known_by = known_by if isinstance(known_by, str | None) else known_by[1]
        self._identify = None if spout.identity is None else identity_reader(spout.identity)
        # Bodies with the values of their properties; the delivery tag is the message id.
        self._bodies: deque[tuple[Delivery, list[Any]]] = deque()
        # By message id, counted from 1.
        self._fed_bodies: dict[int, bytes] = {}
        self.refused: list[RefusedBody] = []

    @property
    def left(self) -> int:
        return super().left + len(self._bodies)

    def feed_body(self, body: bytes, properties: Mapping[str, Any], identity: str | None) -> int:
        """Feed a body, which is emitted at the next ``run_until_idle``; return its message id.

        Raises SchemaError for a property without a column, BadPropertyError for a property that no
        message can have, LocalClusterError for an identity that the spout does not read.
        """
        values = self._properties.values(properties)
        msg_id = len(self._fed_bodies) + 1
        made = write_properties(self._said(properties, identity))
        self._bodies.append((Delivery(0, msg_id, body, None, made), values))
        self._fed_bodies[msg_id] = body
        return msg_id

    def _said(self, properties: Mapping[str, Any], identity: str | None) -> dict[str, Any]:
        """Return the properties that hold the message's identity and time."""
        said = {name: properties[name] for name in _KNOWN_BY if name in properties}
        if self._by_user:
            said["user_id"] = properties.get("user_id", "guest")
        if identity is None:
            return said
        if self._known_by == "message_id":
            return {**said, "message_id": identity}
        if self._known_by in {None, "body"}:
            raise LocalClusterError(
                "the identity of its messages is their body: give none"
                if self._known_by
                else "its messages have no identity: give the spout one, such as "
                'QueueSpout(…, identity="message_id")'
            )
        name = str(self._known_by).removeprefix("header:")
        return {**said, "headers": {**(said.get("headers") or {}), name: identity}}

    def next_tuple(self, collector: SpoutCollector) -> None:
        super().next_tuple(collector)
        while self._bodies:
            delivery, properties = self._bodies.popleft()
            msg_id = delivery.tag
            try:
                values = [*self._decode(_not_too_large(delivery.body)), *properties]
                known = None if self._identify is None else self._identify(delivery)
                self._emit(collector, Fed(values, msg_id, DEFAULT_STREAM, None, known))
            except Exception as error:  # noqa: BLE001 - as in the spout: a message harms only itself
                self._take(msg_id)
                reason = refusal_of(error)
                self.refused.append(RefusedBody(body=delivery.body, reason=reason))
                collector.report_error(f"message dead-lettered: {reason}")
            else:
                return

    def reject(self, msg_id: MsgId, reason: str) -> None:
        self._dead_letter(msg_id, f"rejected: {reason}")

    def retry_later(self, msg_id: MsgId, seconds: float, reason: str, *, blame: bool) -> None:
        failures = self._failures[msg_id]
        if blame and isinstance(next_action(failures, NO_WAIT, self._delivery_limit), GiveUp):
            self._dead_letter(msg_id, reason)
            return
        self._failures[msg_id] += blame
        super().retry_later(msg_id, seconds, reason, blame=blame)

    def _dead_letter(self, msg_id: MsgId, reason: str) -> None:
        self._take(msg_id)
        body = self._fed_bodies.get(msg_id) if isinstance(msg_id, int) else None
        if body is not None:
            self.refused.append(RefusedBody(body=body, reason=reason))


def _not_too_large(body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise BadBodyError(f"the body of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}")
    return body


class CapturedSink(Bolt):
    """Stands in for a ``QueueSink``: builds its messages without publishing them."""

    def __init__(self, sink: QueueSink) -> None:
        self._sink = sink

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - it does not connect
        """Do not connect, as the sink itself would."""
        self._sink.carry_traces()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self._sink.execute(tup, collector)

    def flush(self, collector: OutputCollector) -> None:
        for tup, message in self._sink.take_held():
            properties = b"".join(message.properties.encode())
            # Not anchored: a published message stays if another part of its tree fails.
            collector.emit(
                [message.exchange, message.routing_key, properties, message.body], stream=PUBLISHED
            )
            collector.ack(tup)


def published_message(values: Sequence[Any]) -> PublishedMessage:
    """Build the message from the values that a captured sink emitted."""
    exchange, routing_key, properties, body = values
    return PublishedMessage(
        body=body,
        exchange=exchange,
        routing_key=routing_key,
        properties=read_properties(properties),
    )


def places_of(topology: Topology) -> Sequence[tuple[Any, Any]]:
    """Return (queue, exchange) of each sink of a topology: each a name, a ``field``, or None."""
    return [
        (spec.bolt.queue, spec.bolt.exchange)
        for spec in topology.bolts.values()
        if isinstance(spec.bolt, QueueSink)
    ]


def without_database(topology: Topology) -> Topology:
    """Return the topology with stand-ins for its database sinks."""
    return _with_sinks(
        topology,
        DatabaseSink,
        lambda spec, sink: replace(
            spec, bolt=CapturedDatabase(sink), streams=_streams(topology, spec)
        ),
    )


def with_database(topology: Topology, url: str) -> Topology:
    """Return the topology with this database for its sinks. Raises TopologyError."""
    return _with_sinks(topology, DatabaseSink, lambda spec, sink: replace(spec, bolt=sink.at(url)))


class CapturedDatabase(Bolt):
    """Stands in for a ``DatabaseSink``: builds its rows without writing them.

    As in the database, a row with a known key is dropped. A user's function is not called.
    """

    def __init__(self, sink: DatabaseSink) -> None:
        self._sink = sink
        self._keys = _Keys()
        self._held: list[tuple[Tuple, Row]] = []

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Do nothing; the sink itself would look up its address here."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup.is_tick:
            collector.ack(tup)
            return
        self._held.append((tup, self._sink.row_of(tup, self._sink.columns_of(tup.fields))))

    def flush(self, collector: OutputCollector) -> None:
        held = self._held
        self._held = []
        for tup, row in held:
            before = self._keys.claim(row)
            if before is None:
                # Not anchored: a written row stays if another part of its tree fails.
                stream = _stream_of(tup.source_component, tup.source_stream)
                collector.emit([*tup.values, row.key], stream=stream)
            elif row.said.contradicts(before):
                collector.report_error(OTHER_MESSAGE.reason)
                collector.fail(tup, OTHER_MESSAGE.reason)
                continue
            collector.ack(tup)


class _Keys:
    """The keys of one sink, shared by its tasks in this process."""

    def __init__(self) -> None:
        self._contents: dict[bytes, int] = {}

    def claim(self, row: Row) -> int | None:
        """Return the content of the earlier message with this row's key; None if the key is new or
        missing.
        """
        if row.key is None:
            return None
        before = self._contents.get(row.key)
        if before is None:
            self._contents[row.key] = row.said.content
        return before

    def __deepcopy__(self, memo: object) -> _Keys:
        return self


def written_rows(topology: Topology, seen: Seen, table: str) -> list[dict[str, Any]]:
    """Return the rows that captured sinks built for a table.

    Raises LocalClusterError for a table that no sink writes into.
    """
    sinks = {
        component: (spec, spec.bolt)
        for component, spec in topology.bolts.items()
        if isinstance(spec.bolt, DatabaseSink)
    }
    tables = sorted({sink.table for _, sink in sinks.values()})
    if table not in tables:
        there = ", ".join(tables) or "none"
        raise LocalClusterError(f"no DatabaseSink writes into {table!r}; the tables are {there}")
    rows: list[dict[str, Any]] = []
    for component, (spec, sink) in sinks.items():
        # Drop duplicates here too: tasks in several processes do not share keys.
        keys: set[bytes] = set()
        for one in spec.subscriptions if sink.table == table else ():
            names = topology.spec(one.component).streams[one.stream].names
            columns = sink.columns_of(names)
            for *values, key in seen.of(component, _stream_of(one.component, one.stream)):
                if key not in keys:
                    found = dict(zip(names, values, strict=True))
                    rows.append({column: found[field] for column, field in columns.items()})
                if key is not None:
                    keys.add(key)
    return rows


def _streams(topology: Topology, spec: BoltSpec) -> dict[str, Schema]:
    """Return one stream per stream that the sink receives: its fields and the key."""
    return {
        _stream_of(one.component, one.stream): Schema(
            (*topology.spec(one.component).streams[one.stream].fields, _KEY)
        )
        for one in spec.subscriptions
    }


def _stream_of(component: str, stream: str) -> str:
    return f"__written {component} {stream}"


def with_spouts(topology: Topology, spouts: Mapping[str, Spout]) -> Topology:
    """Return the topology with some spouts replaced; the new spouts declare the streams.

    Raises LocalClusterError for a component that is not a spout of the topology.
    """
    known = topology.spouts
    _check_given("spout", Spout, spouts, known)
    new = {component: replace(known[component], spout=spout) for component, spout in spouts.items()}
    return replace(topology, spouts={**known, **new})


def with_bolts(topology: Topology, bolts: Mapping[str, AnyBolt]) -> Topology:
    """Return the topology with some bolts replaced, for example to stand in for an API.

    Streams, subscriptions and settings stay. Raises LocalClusterError for a component that is not a
    bolt of the topology.
    """
    known = topology.bolts
    _check_given("bolt", AnyBolt, bolts, known)
    new = {component: replace(known[component], bolt=bolt) for component, bolt in bolts.items()}
    return replace(topology, bolts={**known, **new})


def _check_given(
    noun: str, kind: type | UnionType, given: Mapping[str, object], known: Mapping[str, object]
) -> None:
    """Raise LocalClusterError unless each component is known and its substitute is of the kind."""
    for component, one in given.items():
        if component not in known:
            raise absent(noun, component, known)
        if not isinstance(one, kind):
            raise LocalClusterError(f"the {noun} for {component!r} is {kind_of(one)}, not a {noun}")


def feeder_for(topology: Topology, component: str) -> FeederSpout:
    """Return a FeederSpout with the streams and properties of a spout, for ``with_spouts``."""
    if component not in topology.spouts:
        raise absent("spout", component, topology.spouts)
    spec = topology.spouts[component]
    if isinstance(spec.spout, QueueSpout):
        return FeederSpout(spec.spout.body_fields, properties=spec.spout.properties.columns)
    return FeederSpout(
        streams={
            stream: ", ".join(f"`{field.name}` {field.type}" for field in schema.fields)
            for stream, schema in spec.streams.items()
        },
        direct_streams=spec.direct,
    )

"""Looks at what a cluster has left behind: messages, dead letters, states, tracebacks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tiercel.queues.errors import BadPropertyError, SchemaError
from tiercel.queues.spout import MsgId
from tiercel.spark_jobs.bolts.fields import FromField
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.state.encoding import Key, decode_key, decode_value
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.capture import Seen
from tiercel.workers.testing.database_stand_in import written_rows
from tiercel.workers.testing.engine import Engine
from tiercel.workers.testing.errors import LocalClusterError
from tiercel.workers.testing.spout_tasks import SpoutTasks
from tiercel.workers.testing.stand_ins import (
    PUBLISHED,
    BodyFeeder,
    PublishedMessage,
    RefusedBody,
    places_of,
    published_message,
)


class Looking:
    """The part of a ``LocalCluster`` that is asked for what came of its messages."""

    # The topology that runs: with stand-ins, and the kit's own bolt.
    _watched: Topology
    _spouts: SpoutTasks

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._seen = Seen()
        self._engine: Engine | None = None
        self._last_states: dict[str, dict[Key, Any]] = {}
        self._last_tracebacks: list[str] = []

    def feed_body(
        self,
        body: bytes | str,
        spout: str | None = None,
        properties: Mapping[str, Any] = MappingProxyType({}),
        identity: str | None = None,
    ) -> int:
        """Feed a body to a ``QueueSpout``, the only one unless it is named: at the next
        ``run_until_idle`` its own decoder reads it.

        Returns the message id: they count from 1, for each spout. Nothing is delivered again but
        what a bolt wants later (``RetryLater``). A str is sent in UTF-8. ``properties`` are values
        of the spout's properties by name; those that are not given are null. ``identity`` is the
        message's id, or its header, by which ``QueueSpout(identity=…)`` knows it. Raises
        LocalClusterError for a spout or a property that there is not, and for an identity that the
        spout does not look for.
        """
        raw = body.encode() if isinstance(body, str) else body
        try:
            return self._feeder(spout).feed_body(raw, properties, identity)
        except (BadPropertyError, SchemaError) as error:
            raise LocalClusterError(str(error)) from error

    def dead_letters(self, spout: str | None = None) -> list[RefusedBody]:
        """Return the bodies that a ``QueueSpout``, the only one unless it is named, has
        dead-lettered at once: those that could not be decoded, and those that a bolt rejected.

        Raises as ``feed_body``.
        """
        return list(self._feeder(spout).refused)

    def rejected(self, component: str) -> list[MsgId]:
        """Message ids that a bolt rejected, in the order in which this spout heard of them; they
        are among ``failed`` too.
        """
        return [one.msg_id for one in self._spouts.told(component) if one.rejected]

    def retried_later(self, component: str) -> list[tuple[MsgId, float]]:
        """Each message id that a bolt wanted later (``RetryLater``), with the seconds, in order."""
        told = self._spouts.told(component)
        return [(one.msg_id, one.later_s) for one in told if one.later_s is not None]

    def published(
        self, queue: str | None = None, *, exchange: str | None = None
    ) -> list[PublishedMessage]:
        """Return what the topology's ``QueueSink`` bolts have published to a queue, or to an
        exchange.

        In order, as far as one task published it. Raises LocalClusterError for one that none of
        them publishes to.
        """
        if (queue is None) is (exchange is None):
            raise LocalClusterError("name a queue, or exchange=")
        wanted = 0 if exchange is None else 1
        known = [place[wanted] for place in places_of(self._topology) if place[wanted] is not None]
        name = queue if exchange is None else exchange
        if name not in known and not any(isinstance(one, FromField) for one in known):
            there = ", ".join(map(str, known)) or "none"
            kinds = "exchanges" if wanted else "queues"
            raise LocalClusterError(f"no QueueSink publishes to {name!r}; the {kinds} are {there}")
        sent = [
            published_message(values)
            for component in self._topology.bolts
            for values in self._seen.of(component, PUBLISHED)
        ]
        if exchange is not None:
            return [one for one in sent if one.exchange == exchange]
        return [one for one in sent if not one.exchange and one.routing_key == queue]

    def written(self, table: str) -> list[dict[str, Any]]:
        """Return the rows that the topology's ``DatabaseSink`` bolts have written into a table:
        columns to values.

        A row whose key was written before is none. In order, as far as one task wrote them. Raises
        LocalClusterError for a table that none of them writes into.
        """
        return written_rows(self._topology, self._seen, table)

    def state(self, component: str) -> dict[Key, Any]:
        """The state of a ``StatefulBolt``: what its tasks have put there.

        Raises LocalClusterError if there is no such bolt.
        """
        spec = self._topology.bolts.get(component)
        if spec is None or not isinstance(spec.bolt, StatefulBolt):
            raise LocalClusterError(f"there is no stateful bolt {component!r}")
        if component in self._last_states:
            return dict(self._last_states[component])
        return _state_of(self._running_engine(), component)

    def tracebacks(self) -> list[str]:
        """Return the first traceback of each error that bolts raised, the newest error first.

        An error is one exception at one line of one bolt.
        """
        if self._engine is None:
            return list(self._last_tracebacks)
        return [known.first.text for known in self._engine.tracebacks()]

    def _feeder(self, spout: str | None) -> BodyFeeder:
        feeders = {
            component: spec.spout
            for component, spec in self._watched.spouts.items()
            if isinstance(spec.spout, BodyFeeder)
        }
        there = ", ".join(feeders) or "none"
        if spout is None and len(feeders) != 1:
            raise LocalClusterError(f"name the QueueSpout that is meant; there are {there}")
        found = next(iter(feeders)) if spout is None else spout
        if found not in feeders:
            raise LocalClusterError(f"there is no QueueSpout {spout!r}; there are {there}")
        return feeders[found]

    def _keep_seen(self, engine: Engine) -> None:
        """Keep what can be asked for when the engine is gone."""
        self._last_tracebacks = [known.first.text for known in engine.metrics.traces()]
        for component, spec in self._topology.bolts.items():
            if isinstance(spec.bolt, StatefulBolt):
                self._last_states[component] = _state_of(engine, component)

    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise LocalClusterError(
                "the cluster does not run: use it as `with LocalCluster(topology) as cluster:`"
            )
        return self._engine


def _state_of(engine: Engine, component: str) -> dict[Key, Any]:
    return {decode_key(field): decode_value(raw) for field, raw in engine.state.entries(component)}

"""Topologies: spouts, bolts, and who subscribes to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from queues.errors import SchemaError
from queues.schema import Schema
from queues.spout import Spout
from spark_jobs.bolt import DEFAULT_STREAM, BasicBolt, Bolt
from spark_jobs.config import Config
from spark_jobs.errors import TopologyError
from spark_jobs.grouping import AllTasks, Fields, Global, Grouping, Shuffle


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """One stream of one component, and how it is spread over the subscriber's tasks."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, kw_only=True)
class SpoutSpec:
    """A spout in a topology."""

    spout: Spout
    parallelism: int
    overrides: Mapping[str, Any]
    streams: Mapping[str, Schema]


@dataclass(frozen=True, kw_only=True)
class BoltSpec:
    """A bolt in a topology."""

    bolt: Bolt | BasicBolt
    parallelism: int
    overrides: Mapping[str, Any]
    streams: Mapping[str, Schema]
    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A validated topology; immutable, travels to the workers."""

    name: str
    config: Config
    spouts: Mapping[str, SpoutSpec]
    bolts: Mapping[str, BoltSpec]

    @cached_property
    def _first_task(self) -> dict[str, int]:
        first, next_task = {}, 1
        for component in (*self.spouts, *self.bolts):
            first[component] = next_task
            next_task += self.spec(component).parallelism
        return first

    def spec(self, component: str) -> SpoutSpec | BoltSpec:
        """A component by its id; raises KeyError."""
        return self.spouts[component] if component in self.spouts else self.bolts[component]

    def task_ids(self, component: str) -> range:
        """The ids of a component's tasks. Those of spouts come first, from 1 on."""
        first = self._first_task[component]
        return range(first, first + self.spec(component).parallelism)

    @property
    def spout_tasks(self) -> int:
        """Number of spout tasks: their ids are 1 .. this."""
        return sum(spec.parallelism for spec in self.spouts.values())

    def config_of(self, component: str) -> Config:
        """The settings of a component: the topology's with its own over them."""
        return self.config.override(self.spec(component).overrides)

    def subscribers(self, component: str, stream: str) -> list[tuple[str, Subscription]]:
        """The bolts that receive a stream, with their subscriptions to it."""
        return [
            (bolt, subscription)
            for bolt, spec in self.bolts.items()
            for subscription in spec.subscriptions
            if (subscription.component, subscription.stream) == (component, stream)
        ]


@dataclass
class _Declared:
    component: Any
    parallelism: int
    overrides: Mapping[str, Any]
    subscriptions: list[Subscription] = field(default_factory=list)


class BoltDeclarer:
    """Subscribes a bolt to streams; calls chain."""

    def __init__(self, declared: _Declared) -> None:
        self._declared = declared

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Each tuple to one task, evenly."""
        return self._subscribe(component, stream, Shuffle())

    def fields_grouping(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Equal values of ``fields`` to one task, across runs and machines."""
        return self._subscribe(component, stream, Fields(fields))

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Each tuple to every task."""
        return self._subscribe(component, stream, AllTasks())

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Each tuple to the task with the lowest id."""
        return self._subscribe(component, stream, Global())

    def _subscribe(self, component: str, stream: str, grouping: Grouping) -> BoltDeclarer:
        self._declared.subscriptions.append(Subscription(component=component, stream=stream, grouping=grouping))
        return self


class TopologyBuilder:
    """Puts a topology together; ``build`` checks it."""

    def __init__(self, name: str, config: Config | None = None) -> None:
        """``name`` is part of the keys in Redis: two topologies that run at once need two names."""
        if not name or any(character in name for character in "{} \n\t"):
            raise TopologyError(f"{name!r} cannot name a topology: use letters, digits, dashes and dots")
        self._name, self._config = name, config or Config()
        self._spouts: dict[str, _Declared] = {}
        self._bolts: dict[str, _Declared] = {}

    def set_spout(self, id_: str, spout: Spout, parallelism: int = 1, config: Mapping[str, Any] | None = None) -> None:
        """Add a spout; each of its tasks is a process of its own."""
        if not isinstance(spout, Spout):
            raise TopologyError(f"spout {id_!r} is a {type(spout).__name__}, not a Spout")
        self._spouts[id_] = self._declare(id_, spout, parallelism, config)

    def set_bolt(
        self, id_: str, bolt: Bolt | BasicBolt, parallelism: int = 1, config: Mapping[str, Any] | None = None
    ) -> BoltDeclarer:
        """Add a bolt; subscribe it by chaining groupings."""
        if not isinstance(bolt, (Bolt, BasicBolt)):
            raise TopologyError(f"bolt {id_!r} is a {type(bolt).__name__}, not a Bolt or BasicBolt")
        self._bolts[id_] = self._declare(id_, bolt, parallelism, config)
        return BoltDeclarer(self._bolts[id_])

    def build(self) -> Topology:
        """The topology; raises TopologyError with the first thing that is wrong."""
        if not self._spouts:
            raise TopologyError(f"topology {self._name!r} has no spout: add one with set_spout")
        spouts = {
            id_: SpoutSpec(
                spout=one.component, parallelism=one.parallelism, overrides=one.overrides, streams=_streams(id_, one.component)
            )
            for id_, one in self._spouts.items()
        }
        bolts = {
            id_: BoltSpec(
                bolt=one.component,
                parallelism=one.parallelism,
                overrides=one.overrides,
                streams=_streams(id_, one.component),
                subscriptions=tuple(one.subscriptions),
            )
            for id_, one in self._bolts.items()
        }
        topology = Topology(name=self._name, config=self._config, spouts=spouts, bolts=bolts)
        for id_, spec in bolts.items():
            _check_subscriptions(topology, id_, spec)
        return topology

    def _declare(self, id_: str, component: object, parallelism: int, config: Mapping[str, Any] | None) -> _Declared:
        if not isinstance(id_, str) or not id_ or "\n" in id_:
            raise TopologyError(f"{id_!r} cannot be an id: use a string")
        if id_.startswith("__"):
            raise TopologyError(f"the id {id_!r} is reserved: do not begin it with two underscores")
        if id_ in self._spouts or id_ in self._bolts:
            raise TopologyError(f"there are two components {id_!r}: give each an id of its own")
        if not isinstance(parallelism, int) or parallelism < 1:
            raise TopologyError(f"{id_!r} has parallelism {parallelism!r}: it must be a number of tasks, at least 1")
        return _Declared(component, parallelism, dict(config or {}))


def _streams(id_: str, component: Any) -> dict[str, Schema]:
    declared = dict(component.output_streams)
    if component.output_fields:
        if DEFAULT_STREAM in declared:
            raise TopologyError(f"{id_!r} declares its default stream twice: in output_fields and in output_streams")
        declared[DEFAULT_STREAM] = component.output_fields
    streams = {}
    for stream, ddl in declared.items():
        try:
            streams[stream] = Schema.parse(ddl)
        except SchemaError as error:
            raise TopologyError(f"stream {stream!r} of {id_!r}: {error}") from error
    return streams


def _check_subscriptions(topology: Topology, id_: str, spec: BoltSpec) -> None:
    if not spec.subscriptions:
        raise TopologyError(f"bolt {id_!r} receives nothing: subscribe it, such as .shuffle_grouping(COMPONENT)")
    for subscription in spec.subscriptions:
        try:
            streams = topology.spec(subscription.component).streams
        except KeyError:
            known = ", ".join((*topology.spouts, *topology.bolts))
            raise TopologyError(
                f"bolt {id_!r} subscribes to {subscription.component!r}, which is not in the topology; there are {known}"
            ) from None
        if subscription.stream not in streams:
            known = ", ".join(streams) or "none: set output_fields"
            raise TopologyError(
                f"bolt {id_!r} subscribes to stream {subscription.stream!r} of {subscription.component!r};"
                f" its streams are {known}"
            )
        try:
            subscription.grouping.validate(streams[subscription.stream])
        except TopologyError as error:
            raise TopologyError(f"bolt {id_!r}, grouping of {subscription.component!r}: {error}") from error

"""Builds a topology: its components, and who subscribes to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiercel.queues.nouns import with_article
from tiercel.queues.spout import Spout
from tiercel.spark_jobs.bolts.bolt import AnyBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.errors import ConfigValueError, TopologyError
from tiercel.spark_jobs.topology.batching import check_batching
from tiercel.spark_jobs.topology.checks import (
    check_config,
    check_methods,
    check_subscriptions,
    direct_of,
    streams_of,
)
from tiercel.spark_jobs.topology.concurrency import check_concurrency
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import BoltSpec, SpoutSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import (
    AllTasks,
    Custom,
    CustomGrouping,
    Direct,
    Fields,
    Global,
    Grouping,
    LocalOrShuffle,
    NoGrouping,
    PartialKey,
    Shuffle,
)
from tiercel.spark_jobs.topology.identities import check_once
from tiercel.spark_jobs.topology.limits import check_limit
from tiercel.spark_jobs.topology.ordering import check_ordering


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
        """Send each tuple to one task, evenly."""
        return self._subscribe(component, stream, Shuffle())

    def fields_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send equal values of ``fields`` to one task, across runs and machines."""
        return self._subscribe(component, stream, Fields(fields))

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to every task."""
        return self._subscribe(component, stream, AllTasks())

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to the task with the lowest id."""
        return self._subscribe(component, stream, Global())

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """As shuffle."""
        return self._subscribe(component, stream, NoGrouping())

    def local_or_shuffle_grouping(
        self, component: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """As shuffle, among the tasks in the emitter's own process where there are any.

        From a spout there are none.
        """
        return self._subscribe(component, stream, LocalOrShuffle())

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send each tuple to one of two tasks, the same two for equal values of ``fields``."""
        return self._subscribe(component, stream, PartialKey(fields))

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send to the task that the emitter names; only for streams in its ``direct_streams``."""
        return self._subscribe(component, stream, Direct())

    def custom_grouping(
        self, component: str, grouping: CustomGrouping, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send to the tasks that your ``grouping`` chooses; see ``CustomGrouping``."""
        if not isinstance(grouping, CustomGrouping):
            raise TopologyError(
                f"{grouping!r:.60} is no grouping: give an object with prepare and choose_tasks"
            )
        return self._subscribe(component, stream, Custom(grouping))

    def _subscribe(self, component: str, stream: str, grouping: Grouping) -> BoltDeclarer:
        self._declared.subscriptions.append(
            Subscription(component=component, stream=stream, grouping=grouping)
        )
        return self


class TopologyBuilder:
    """Puts a topology together; ``build`` checks it. Every method raises TopologyError."""

    def __init__(self, name: str, config: Config | None = None) -> None:
        """``name`` is part of the keys in Redis: two topologies that run at once need two names."""
        if (
            not isinstance(name, str)
            or not name
            or not name.isprintable()
            or any(character in name for character in "{} ")
        ):
            raise TopologyError(
                f"{name!r} cannot name a topology: use letters, digits, dashes and dots"
            )
        self._name, self._config = name, config or Config()
        self._spouts: dict[str, _Declared] = {}
        self._bolts: dict[str, _Declared] = {}

    def set_spout(
        self, id_: str, spout: Spout, parallelism: int = 1, config: Mapping[str, Any] | None = None
    ) -> None:
        """Add a spout; ``parallelism`` is its number of tasks, each a process of its own.

        ``config`` overrides the topology's settings for this spout; see ``Config``.
        """
        if not isinstance(spout, Spout):
            raise TopologyError(
                f"spout {id_!r} is {with_article(type(spout).__name__)}, not a Spout"
            )
        self._spouts[id_] = self._declare(id_, spout, parallelism, config)

    def set_bolt(
        self, id_: str, bolt: AnyBolt, parallelism: int = 1, config: Mapping[str, Any] | None = None
    ) -> BoltDeclarer:
        """Add a bolt; ``parallelism`` is its number of tasks. Subscribe it by calling groupings on
        what this returns: ``set_bolt(…).shuffle_grouping("orders")``.

        ``config`` overrides the topology's settings for this bolt; see ``Config``.
        """
        if not isinstance(bolt, AnyBolt):
            raise TopologyError(
                f"bolt {id_!r} is {with_article(type(bolt).__name__)}, not a Bolt, BasicBolt, "
                "AsyncBolt, BatchBolt or ArrowBolt"
            )
        check_methods(id_, bolt)
        self._bolts[id_] = self._declare(id_, bolt, parallelism, config)
        return BoltDeclarer(self._bolts[id_])

    def build(self) -> Topology:
        """Return the topology; raises TopologyError with the first thing that is wrong."""
        if not self._spouts:
            raise TopologyError(f"topology {self._name!r} has no spout: add one with set_spout")
        spouts = {
            id_: SpoutSpec(
                spout=one.component,
                parallelism=one.parallelism,
                overrides=one.overrides,
                streams=streams_of(id_, one.component),
                direct=direct_of(id_, one.component),
            )
            for id_, one in self._spouts.items()
        }
        bolts = {
            id_: BoltSpec(
                bolt=one.component,
                parallelism=one.parallelism,
                overrides=one.overrides,
                streams=streams_of(id_, one.component),
                subscriptions=tuple(one.subscriptions),
                direct=direct_of(id_, one.component),
            )
            for id_, one in self._bolts.items()
        }
        topology = Topology(name=self._name, config=self._config, spouts=spouts, bolts=bolts)
        for id_, spec in bolts.items():
            check_subscriptions(topology, id_, spec)
            check_batching(topology, id_, spec)
            check_ordering(topology, id_, spec)
            check_limit(topology, id_, spec)
            check_concurrency(id_, spec)
        for id_, spec in bolts.items():
            check_once(topology, id_, spec)
        for id_ in (*spouts, *bolts):
            check_config(topology, id_)
        return topology

    def _declare(
        self, id_: str, component: object, parallelism: int, config: Mapping[str, Any] | None
    ) -> _Declared:
        if not isinstance(id_, str) or not id_ or "\n" in id_:
            raise TopologyError(f"{id_!r} cannot be an id: use a string")
        if id_.startswith("__"):
            raise TopologyError(f"the id {id_!r} is reserved: do not begin it with two underscores")
        if id_ in self._spouts or id_ in self._bolts:
            raise TopologyError(f"there are two components {id_!r}: give each an id of its own")
        if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
            raise TopologyError(
                f"{id_!r} has parallelism {parallelism!r}: it must be a number of tasks, at least 1"
            )
        overrides = {} if config is None else config
        try:
            Config.check_override(overrides, "spout" if isinstance(component, Spout) else "bolt")
            return _Declared(component, parallelism, dict(overrides))
        except ConfigValueError as error:
            raise TopologyError(f"config of {id_!r}: {error}") from error

"""Topologies: spouts, bolts, and who subscribes to what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from tiercel.queues.limits import UNEMITTED_S
from tiercel.queues.spout import Spout, SpoutContext, TaskContext
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.bolt import AnyBolt
from tiercel.spark_jobs.bolts.collecting import TopologyContext
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.grouping import Grouping
from tiercel.spark_jobs.topology.rates import parse_rate

# Most of what waits for a limit begins sooner: see ``kinds/calls/lines.py``.
_LONG_WAIT_S = 60.0


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
    # The streams on which the emitter names the task.
    direct: AbstractSet[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class BoltSpec:
    """A bolt in a topology."""

    bolt: AnyBolt
    parallelism: int
    overrides: Mapping[str, Any]
    streams: Mapping[str, Schema]
    subscriptions: tuple[Subscription, ...]
    direct: AbstractSet[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A validated topology; immutable, travels to the workers."""

    name: str
    config: Config
    spouts: Mapping[str, SpoutSpec]
    bolts: Mapping[str, BoltSpec]

    @cached_property
    def _first_task(self) -> dict[str, int]:
        first = {}
        next_task = 1
        for component in (*self.spouts, *self.bolts):
            first[component] = next_task
            next_task += self.spec(component).parallelism
        return first

    def spec(self, component: str) -> SpoutSpec | BoltSpec:
        """A component by its id; raises KeyError."""
        return self.spouts[component] if component in self.spouts else self.bolts[component]

    def task_ids(self, component: str) -> range:
        """The ids of a component's tasks. The tasks of spouts come first, from 1 on."""
        first = self._first_task[component]
        return range(first, first + self.spec(component).parallelism)

    def component_of(self, task_id: int) -> str:
        """Return the component of a task; raises KeyError."""
        for component in (*self.spouts, *self.bolts):
            if task_id in self.task_ids(component):
                return component
        raise KeyError(task_id)

    def context_of(self, task_id: int) -> TopologyContext:
        """Return the context of a task."""
        component = self.component_of(task_id)
        spec = self.spec(component)
        subscriptions = spec.subscriptions if isinstance(spec, BoltSpec) else ()
        return TopologyContext(
            topology=self.name,
            component=component,
            task_id=task_id,
            task_index=task_id - self.task_ids(component)[0],
            parallelism=spec.parallelism,
            streams={stream: schema.names for stream, schema in spec.streams.items()},
            targets={
                stream: [bolt for bolt, _ in self.subscribers(component, stream)]
                for stream in spec.streams
            },
            tasks={each: self.task_ids(each) for each in (*self.spouts, *self.bolts)},
            sources=[
                (subscription.component, subscription.stream) for subscription in subscriptions
            ],
        )

    def spout_context_of(
        self, task_id: int, *, wake: Callable[[], None], count: Callable[[str, int], None]
    ) -> SpoutContext:
        """Return the context of a spout task, with what its worker offers it."""
        around = self.context_of(task_id)
        shared = {each.name: getattr(around, each.name) for each in fields(TaskContext)}
        return SpoutContext(**shared, wake=wake, count=count, held=self.held)

    @property
    def held(self) -> timedelta | None:
        """Time for which a message may be in hand, emitted or waiting for it, where a bolt may take
        longer than messages live, or begins tuples seldom; None: there is no such bolt.
        """
        if not self._long_secs and not self._limits_secs:
            return None
        return timedelta(seconds=self.in_flight_secs + self._limits_secs + UNEMITTED_S)

    @property
    def in_flight_secs(self) -> float:
        """Time for which a message may be in flight that waits behind no other: its timeout, and
        each bolt once that may take longer than that.
        """
        return self.config.message_timeout_secs + self._long_secs

    @property
    def _long_secs(self) -> float:
        limits = [self.config_of(bolt).execute_timeout_secs or 0.0 for bolt in self.bolts]
        return sum(limit for limit in limits if limit > self.config.message_timeout_secs)

    @property
    def _limits_secs(self) -> float:
        """Time for which the first tuple in each line may wait for a rate limit, where it is long:
        tuples behind it go back to the broker.
        """
        rates = [
            (spec.parallelism, parse_rate(spec.overrides["rate_limit"]))
            for spec in self.bolts.values()
            if spec.overrides.get("rate_limit") is not None
        ]
        waits = [tasks * rate.interval_us / 1e6 for tasks, rate in rates]
        return sum(wait for wait in waits if wait > _LONG_WAIT_S)

    @property
    def parallelism(self) -> dict[str, int]:
        """The number of tasks of each bolt."""
        return {bolt: spec.parallelism for bolt, spec in self.bolts.items()}

    def with_parallelism(self, numbers: Mapping[str, int]) -> Topology:
        """Return the topology with other numbers of tasks.

        Bolts that it does not have are passed over.

        Tasks of spouts keep their ids, tasks of bolts may get others.
        """
        bolts = {
            bolt: replace(spec, parallelism=numbers.get(bolt, spec.parallelism))
            for bolt, spec in self.bolts.items()
        }
        return replace(self, bolts=bolts)

    @property
    def spout_tasks(self) -> int:
        """Number of spout tasks: their ids are 1 .. this."""
        return sum(spec.parallelism for spec in self.spouts.values())

    @cached_property
    def depth(self) -> int:
        """Bolts in a row: the bolts that a tuple goes through, on the shortest way from a spout, to
        the bolt that is farthest off.
        """
        reached = set(self.spouts)
        depth = 0
        while further := {
            bolt
            for bolt, spec in self.bolts.items()
            if bolt not in reached and any(each.component in reached for each in spec.subscriptions)
        }:
            reached |= further
            depth += 1
        return depth

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

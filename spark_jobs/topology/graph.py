"""Topologies: spouts, bolts, subscriptions, and the spread of bolt tasks over Spark tasks.

The processes of a topology must agree on its shape.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property
from inspect import isroutine
from typing import TYPE_CHECKING, Any

from tiercel.acker.ids import EXTRA, line_of, task_of
from tiercel.acker.layout import LedgerSpec
from tiercel.queues.limits import UNEMITTED_S
from tiercel.queues.spout import Spout, SpoutContext, TaskContext
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.collecting import TopologyContext
from tiercel.spark_jobs.bolts.windowed_bolt import (
    AnyBolt,
    WindowedBolt,
    longest_held,
    shortest_held,
)
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.config import Config, parse_rate
from tiercel.spark_jobs.topology.grouping import Grouping, Shuffle

# Only a bolt with a ``Retry`` loads tenacity.
if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.retry import Retry

# Version of the format in Redis: chunks, and keys of the ledger, inboxes and states. Raise it when
# one of them changes.
_FORMAT = 2
# Most tuples that wait for a limit begin sooner.
_LONG_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """A subscription to one stream of one component, with its grouping."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, kw_only=True)
class ComponentSpec:
    """The fields that spouts and bolts in a topology share."""

    parallelism: int
    overrides: Mapping[str, Any]
    streams: Mapping[str, Schema]
    # Streams on which the emitter names the task.
    direct: AbstractSet[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SpoutSpec(ComponentSpec):
    """A spout in a topology."""

    spout: Spout


@dataclass(frozen=True, kw_only=True)
class BoltSpec(ComponentSpec):
    """A bolt in a topology."""

    bolt: AnyBolt
    subscriptions: tuple[Subscription, ...]

    @property
    def retry(self) -> Retry | None:
        """The policy by which the bolt's tasks execute tuples again that fail; None: they do not.

        Only for a built topology, where this is checked.
        """
        found = self.overrides.get("retry", getattr(self.bolt, "retry", None))
        # A bolt may have a method of this name.
        return None if isroutine(found) else found


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A validated topology; immutable, travels to the workers."""

    name: str
    config: Config
    spouts: Mapping[str, SpoutSpec]
    bolts: Mapping[str, BoltSpec]
    # Hexadecimal digits that differ if the code of two processes differs; empty: unknown. See
    # ``shipping.code_of``.
    code: str = field(default="", compare=False)

    @cached_property
    def _first_task(self) -> dict[str, int]:
        first = {}
        next_task = 1
        for component in (*self.spouts, *self.bolts):
            first[component] = next_task
            next_task += self.spec(component).parallelism
        return first

    def spec(self, component: str) -> SpoutSpec | BoltSpec:
        """Return a component by its id; raises KeyError."""
        return self.spouts[component] if component in self.spouts else self.bolts[component]

    def task_ids(self, component: str) -> range:
        """Return the ids of a component's tasks. Ids begin with 1, tasks of spouts come first."""
        first = self._first_task[component]
        return range(first, first + self.spec(component).parallelism)

    def component_of(self, task_id: int) -> str:
        """Return the component of a task, also of an extra one; raises KeyError."""
        base = task_of(task_id)
        at = bisect_right(list(self._first_task.values()), base) - 1
        component = list(self._first_task)[at]
        if at < 0 or base not in self.task_ids(component):
            raise KeyError(task_id)
        return component

    def context_of(self, task_id: int) -> TopologyContext:
        """Return the context of a task."""
        component = self.component_of(task_id)
        spec = self.spec(component)
        subscriptions = spec.subscriptions if isinstance(spec, BoltSpec) else ()
        index = task_of(task_id) - self.task_ids(component)[0]
        return TopologyContext(
            topology=self.name,
            component=component,
            task_id=task_id,
            # Above the ids of the bolt's own tasks for an extra task.
            task_index=index + task_id // EXTRA * spec.parallelism,
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
        """Return the context of a spout task, with its worker's callbacks."""
        around = self.context_of(task_id)
        shared = {each.name: getattr(around, each.name) for each in fields(TaskContext)}
        return SpoutContext(
            **shared,
            wake=wake,
            count=count,
            held=self.held,
            needed=self.windows_need,
            configured=self.config.consumer_timeout,
        )

    @property
    def held(self) -> timedelta | None:
        """The longest time that a message may be unsettled, if a bolt may take longer than the
        message timeout, has a slow rate limit or windows, or retries for long; None: there is no
        such bolt.
        """
        waits_secs = self._limits_secs + self._retries_secs + self._windows_secs
        if not self._long_secs and not waits_secs:
            return None
        return timedelta(seconds=self.in_flight_secs + waits_secs + UNEMITTED_S)

    @property
    def in_flight_secs(self) -> float:
        """The longest time that a message may be in flight if it waits behind no other: its
        timeout, plus the limit of each bolt that may take longer than that.
        """
        return self.config.message_timeout_secs + self._long_secs

    @property
    def _long_secs(self) -> float:
        long = [bolt for bolt in self.bolts if self.may_outlast_timeout(bolt)]
        return sum(self.config_of(bolt).execute_timeout_secs or 0.0 for bolt in long)

    def may_outlast_timeout(self, bolt: str) -> bool:
        """Return True if a call of the bolt may take longer than the message timeout."""
        limit_s = self.config_of(bolt).execute_timeout_secs or 0.0
        return limit_s > self.config.message_timeout_secs

    @property
    def _limits_secs(self) -> float:
        """The time that the first tuple in each line may wait for a slow rate limit; the tuples
        behind it go back to the broker.
        """
        rates = [
            (spec.parallelism, parse_rate(spec.overrides["rate_limit"]))
            for spec in self.bolts.values()
            if spec.overrides.get("rate_limit") is not None
        ]
        waits = [tasks * rate.interval_us / 1e6 for tasks, rate in rates]
        return sum(wait for wait in waits if wait > _LONG_WAIT_S)

    @property
    def _retries_secs(self) -> float:
        """The time that the retries of a message may take: all waits, and an attempt that takes as
        long as it may after each of them.
        """
        times = []
        for bolt, spec in self.bolts.items():
            if (retry := spec.retry) is None:
                continue
            timeout_s = self.config.message_timeout_secs
            attempt_s = max(timeout_s, self.config_of(bolt).execute_timeout_secs or 0.0)
            times.append(retry.longest_s + (retry.attempts - 1) * attempt_s)
        return sum(time_s for time_s in times if time_s > _LONG_WAIT_S)

    @property
    def windows_need(self) -> timedelta | None:
        """The longest time for which one windowed bolt must hold messages: its window, ``lag`` and
        ``idle``; None: there is none.
        """
        return max(map(shortest_held, self._windowed), default=None)

    @property
    def _windows_secs(self) -> float:
        """The time that windowed bolts may hold a message."""
        return sum(longest_held(bolt).total_seconds() for bolt in self._windowed)

    @property
    def _windowed(self) -> list[WindowedBolt]:
        bolts = [spec.bolt for spec in self.bolts.values()]
        return [bolt for bolt in bolts if isinstance(bolt, WindowedBolt)]

    @property
    def parallelism(self) -> dict[str, int]:
        """The number of tasks of each bolt."""
        return {bolt: spec.parallelism for bolt, spec in self.bolts.items()}

    def with_parallelism(self, numbers: Mapping[str, int]) -> Topology:
        """Return the topology with other numbers of tasks; unknown bolts are ignored.

        Tasks of spouts keep their ids, tasks of bolts may get others.
        """
        bolts = {
            bolt: replace(spec, parallelism=numbers.get(bolt, spec.parallelism))
            for bolt, spec in self.bolts.items()
        }
        return replace(self, bolts=bolts)

    @property
    def spout_tasks(self) -> int:
        """The number of spout tasks, whose ids are 1 to this number."""
        return sum(spec.parallelism for spec in self.spouts.values())

    @cached_property
    def depth(self) -> int:
        """The number of bolts on the shortest way from a spout to the farthest bolt."""
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
        """Return the settings of a component: the topology's, overridden by its own."""
        return self.config.override(self.spec(component).overrides)

    def subscribers(self, component: str, stream: str) -> list[tuple[str, Subscription]]:
        """Return the bolts that receive a stream, with their subscriptions to it."""
        return self._subscribers.get((component, stream), [])

    @cached_property
    def _subscribers(self) -> dict[tuple[str, str], list[tuple[str, Subscription]]]:
        found: dict[tuple[str, str], list[tuple[str, Subscription]]] = {}
        for bolt, spec in self.bolts.items():
            for each in spec.subscriptions:
                found.setdefault((each.component, each.stream), []).append((bolt, each))
        return found


def shape_of(topology: Topology) -> str:
    """Return eight hexadecimal digits that are equal for topologies whose processes may be mixed.

    They cover components, their tasks, streams and subscriptions, and the ledger's shards, but not
    the code of bolts.
    """
    spouts = [
        [name, spec.parallelism, _streams(spec.streams)] for name, spec in topology.spouts.items()
    ]
    bolts = [
        [name, spec.parallelism, _streams(spec.streams)]
        + [[each.component, each.stream, each.grouping.outline] for each in spec.subscriptions]
        for name, spec in topology.bolts.items()
    ]
    text = json.dumps([_FORMAT, topology.config.ackers, spouts, bolts])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _streams(streams: Mapping[str, Schema]) -> list[list[str]]:
    return [
        [name, *(f"{field.name} {field.type}" for field in schema.fields)]
        for name, schema in sorted(streams.items())
    ]


def check_has_bolts(topology: Topology) -> None:
    """Raise TopologyError for a topology without a bolt."""
    if not topology.bolts:
        raise TopologyError(f"topology {topology.name!r} has no bolt: add one with set_bolt")


def bolt_tasks(topology: Topology) -> list[int]:
    """Return the ids of all bolt tasks."""
    return [task for bolt in topology.bolts for task in topology.task_ids(bolt)]


def spread(tasks: Sequence[int], slots: int) -> tuple[tuple[int, ...], ...]:
    """Spread bolt tasks evenly over at most ``slots`` Spark tasks, each component over as many as
    possible.
    """
    count = max(1, min(slots, len(tasks)))
    return tuple(tuple(tasks[host::count]) for host in range(count))


def extra_task(task: int, number: int) -> int:
    """Return the id of the extra task with this number beside ``task``, or beside its extra tasks.

    >>> extra_task(7, 2), extra_task(2_000_007, 0)
    (2000007, 7)
    """
    return number * EXTRA + task_of(task)


def line_at(topology: Topology, task: int) -> int | None:
    """Return the line that a bolt task claims tuples from; None if no stream is shuffled to its
    bolt, or if it is the only task.
    """
    component = topology.component_of(task)
    tasks = topology.task_ids(component)
    shuffled = any(
        isinstance(one.grouping, Shuffle) for one in topology.bolts[component].subscriptions
    )
    return line_of(tasks) if shuffled and len(tasks) > 1 else None


def inboxes_of(topology: Topology) -> list[int]:
    """Return the ids of all inboxes: first of the bolt tasks, then of the lines."""
    tasks = bolt_tasks(topology)
    lines = dict.fromkeys(line_at(topology, task) for task in tasks)
    return [*tasks, *(line for line in lines if line is not None)]


def behind(topology: Topology, task: int) -> frozenset[int]:
    """Return the tasks and lines that may receive tuples from this task."""
    component = topology.component_of(task)
    return frozenset(target for _, targets in _receivers(topology, component) for target in targets)


def _receivers(topology: Topology, component: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the tasks and lines that receive tuples from a component, by bolt and subscription."""
    for stream in topology.spec(component).streams:
        for bolt, subscription in topology.subscribers(component, stream):
            yield bolt, subscription.grouping.receivers(topology.task_ids(bolt))


def cycle_of(topology: Topology, task: int) -> frozenset[int]:
    """Return the tasks and lines that this task sends to and that are on a cycle with it.

    A task that waits for room at one of them could wait for itself. The tuples on a cycle are
    bounded by the spouts' tuples in flight.
    """
    component = topology.component_of(task)
    return frozenset(
        target
        for bolt, targets in _receivers(topology, component)
        if component in reach(topology, bolt)
        for target in targets
    )


def has_cycle(topology: Topology) -> bool:
    """Return True if a tuple can lead to another one for the same bolt."""
    return any(cycle_of(topology, topology.task_ids(bolt)[0]) for bolt in topology.bolts)


def upstream(topology: Topology, component: str) -> frozenset[str]:
    """Return all components whose tuples lead to this one, directly or not."""
    others = {*topology.spouts, *topology.bolts} - {component}
    return frozenset(one for one in others if component in reach(topology, one))


def reach(topology: Topology, component: str) -> frozenset[str]:
    """Return this component and all components that are downstream of it."""
    found = {component}
    left: Sequence[str] = [component]
    while left:
        further = {
            bolt
            for one in left
            for stream in topology.spec(one).streams
            for bolt, _ in topology.subscribers(one, stream)
        }
        left = sorted(further - found)
        found |= further
    return frozenset(found)


def ledger_spec_of(topology: Topology, redis_urls: tuple[str, ...]) -> LedgerSpec:
    """The ledger of a topology, its shards spread over these servers.

    With ``ackers=0`` it stays empty.
    """
    config = topology.config
    timeout = (
        timedelta(seconds=config.message_timeout_secs) if config.enable_message_timeouts else None
    )
    return LedgerSpec(
        topology=topology.name,
        urls=redis_urls,
        shards=max(1, config.ackers),
        owners=topology.spout_tasks,
        message_timeout=timeout,
    )

"""Checks that a topology can run, component by component; each raises TopologyError."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tiercel.queues.errors import SchemaError
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.bolt import AnyBolt, AsyncBolt, BatchBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.errors import ConfigValueError, TopologyError
from tiercel.spark_jobs.topology.graph import BoltSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import Direct

_NEVER_RUN: dict[Callable[[object], bool], str] = {
    inspect.iscoroutinefunction: "async",
    inspect.isgeneratorfunction: "a generator",
    inspect.isasyncgenfunction: "an async generator",
}


def check_methods(id_: str, bolt: AnyBolt) -> None:
    """A call of a generator or a coroutine function runs nothing, and the tuple would be acked."""
    execute = bolt.execute_batch if isinstance(bolt, BatchBolt) else bolt.execute
    for method in (bolt.prepare, execute, bolt.flush, bolt.cleanup):
        for lazy, what in _NEVER_RUN.items():
            may_be = isinstance(bolt, AsyncBolt) and lazy is inspect.iscoroutinefunction
            if lazy(method) and not may_be:
                raise TopologyError(
                    f"bolt {id_!r}: {method.__name__} is {what} and would never run: write a "
                    "plain method"
                    + (", or derive the bolt from AsyncBolt" if what == "async" else "")
                )
    if isinstance(bolt, AsyncBolt) and not inspect.iscoroutinefunction(bolt.execute):
        raise TopologyError(
            f"bolt {id_!r}: execute of an AsyncBolt must be async: write `async def execute`, or "
            "derive the bolt from BasicBolt"
        )


def streams_of(id_: str, component: Any) -> dict[str, Schema]:
    declared = dict(component.output_streams)
    if component.output_fields:
        if DEFAULT_STREAM in declared:
            raise TopologyError(
                f"{id_!r} declares its default stream twice: in output_fields and in output_streams"
            )
        declared[DEFAULT_STREAM] = component.output_fields
    streams = {}
    for stream, ddl in declared.items():
        try:
            streams[stream] = Schema.parse(ddl)
        except SchemaError as error:
            raise TopologyError(f"stream {stream!r} of {id_!r}: {error}") from error
    return streams


def direct_of(id_: str, component: Any) -> frozenset[str]:
    direct = frozenset(getattr(component, "direct_streams", ()))
    unknown = direct - streams_of(id_, component).keys()
    if unknown:
        raise TopologyError(
            f"direct stream {min(unknown)!r} of {id_!r} has no fields: declare it in output_streams"
        )
    return direct


def check_subscriptions(topology: Topology, id_: str, spec: BoltSpec) -> None:
    if not spec.subscriptions:
        raise TopologyError(
            f"bolt {id_!r} receives nothing: subscribe it, such as .shuffle_grouping(COMPONENT)"
        )
    seen = set()
    for subscription in spec.subscriptions:
        _check_subscription(topology, id_, subscription)
        # Two copies of a tuple to one task would have one edge id, and cancel out.
        source = subscription.component, subscription.stream
        if source in seen:
            raise TopologyError(
                f"bolt {id_!r} subscribes twice to stream {source[1]!r} of {source[0]!r}: "
                "keep one of the two"
            )
        seen.add(source)


def _check_subscription(topology: Topology, id_: str, subscription: Subscription) -> None:
    component = subscription.component
    stream = subscription.stream
    grouping = subscription.grouping
    try:
        source = topology.spec(component)
    except KeyError:
        known = ", ".join((*topology.spouts, *topology.bolts))
        raise TopologyError(
            f"bolt {id_!r} subscribes to {component!r}, which is not in the topology; there are "
            f"{known}"
        ) from None
    if stream not in source.streams:
        known = ", ".join(source.streams) or "none: set output_fields"
        raise TopologyError(
            f"bolt {id_!r} subscribes to stream {stream!r} of {component!r}; its streams "
            f"are {known}"
        )
    if isinstance(grouping, Direct) != (stream in source.direct):
        what = (
            "which is direct: use direct_grouping"
            if stream in source.direct
            else "which is not direct: name it in direct_streams, or use another grouping"
        )
        raise TopologyError(
            f"bolt {id_!r} subscribes by {grouping.name} grouping to stream {stream!r} of "
            f"{component!r}, {what}"
        )
    try:
        grouping.validate(source.streams[stream])
    except TopologyError as error:
        raise TopologyError(f"bolt {id_!r}, grouping of {component!r}: {error}") from error


def check_config(topology: Topology, id_: str) -> None:
    try:
        topology.config_of(id_)
    except ConfigValueError as error:
        raise TopologyError(f"config of {id_!r}: {error}") from error

"""A topology from its first tuple to its last, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tiercel.queues.queue_spout import QueueSpout
from tiercel.queues.spout import Spout
from tiercel.spark_jobs.bolts.kinds import AnyBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.cluster import EngineName, LocalCluster
from tiercel.workers.testing.errors import LocalClusterError, absent
from tiercel.workers.testing.feeder import FeederSpout


def with_spouts(topology: Topology, spouts: Mapping[str, Spout]) -> Topology:
    """The same topology with some spouts replaced; the new ones declare the streams.

    Raises LocalClusterError for a component that is no spout of the topology.
    """
    specs = dict(topology.spouts)
    for component, spout in spouts.items():
        if component not in specs:
            raise absent("spout", component, topology.spouts)
        specs[component] = replace(specs[component], spout=spout)
    return replace(topology, spouts=specs)


def with_bolts(topology: Topology, bolts: Mapping[str, AnyBolt]) -> Topology:
    """The same topology with some bolts replaced, for example by one that answers instead of an
    API. Streams, subscriptions and settings stay.

    Raises LocalClusterError for a component that is no bolt of the topology.
    """
    specs = dict(topology.bolts)
    for component, bolt in bolts.items():
        if component not in specs:
            raise absent("bolt", component, topology.bolts)
        specs[component] = replace(specs[component], bolt=bolt)
    return replace(topology, bolts=specs)


def feeder_for(topology: Topology, component: str) -> FeederSpout:
    """A FeederSpout with the streams of a spout of the topology, for ``with_spouts``; it has the
    properties of a QueueSpout.
    """
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


def complete_topology(  # noqa: PLR0913 - the settings of the cluster, each by its name
    topology: Topology,
    mock_sources: Mapping[str, Sequence[Sequence[Any]]],
    *,
    config: Config | None = None,
    allow_failures: bool = False,
    engine: EngineName = "memory",
    redis_url: str | None = None,
) -> dict[str, list[list[Any]]]:
    """Feed the named spouts' default streams, run to the end, return what each component emitted on
    its default stream.

    The spouts in ``mock_sources`` are replaced; the others run as they are, and must run dry.
    Components without a default stream are left out; for other streams use
    ``LocalCluster.read_tuples``. What is still in flight when nothing moves any more runs into its
    message timeout. A tuple that fails is not fed again: LocalClusterError is raised with the
    first reason, or with ``allow_failures`` the rest is returned. Raises as
    ``LocalCluster.run_until_idle`` does as well.
    """
    fed = _with_fed_spouts(topology, mock_sources)
    with LocalCluster(fed, config, engine=engine, redis_url=redis_url) as cluster:
        cluster.run_until_idle()
        settings = config or topology.config
        if settings.enable_message_timeouts:
            cluster.advance_time(settings.message_timeout_secs)
        reasons = {component: cluster.fail_reasons(component) for component in topology.spouts}
        for component, found in reasons.items():
            if found and not allow_failures:
                raise LocalClusterError(
                    f"{len(found)} tuples of {component!r} failed, the first one with: {found[0]}"
                    + "".join(f"\n\n{text}" for text in cluster.tracebacks())
                )
        return {
            component: cluster.read_tuples(component)
            for component in (*topology.spouts, *topology.bolts)
            if DEFAULT_STREAM in topology.spec(component).streams
        }


def _with_fed_spouts(
    topology: Topology, mock_sources: Mapping[str, Sequence[Sequence[Any]]]
) -> Topology:
    feeders = {component: feeder_for(topology, component) for component in mock_sources}
    for component, rows in mock_sources.items():
        for msg_id, values in enumerate(rows):
            feeders[component].feed(values, msg_id)
    return with_spouts(topology, feeders)

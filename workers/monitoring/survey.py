"""One look at all queues: RabbitMQ's, and tiercel's own in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from tiercel.acker.metrics.windows import Window
from tiercel.queues.broker.depths import QueueDepth, require, survey
from tiercel.workers.control.registry import Registry, TopologyNote
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.overview import Own
from tiercel.workers.monitoring.watcher import TopologyReader


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Content of ``tiercel depths``."""

    queues: Sequence[QueueDepth]
    # Of the topologies that these queues belong to.
    own: Sequence[Own]


def take_survey(
    amqp_url: str, redis_urls: tuple[str, ...], names: Sequence[str], management_url: str | None
) -> Survey:
    """Look at these queues, or without names at those of all topologies that ran.

    Raises UsageError if there are none, QueueMissingError for one of ``names``,
    AckerError, QueuesError.
    """
    owners, topologies = _known(redis_urls)
    if not names and not owners:
        raise UsageError("no topology has run here yet: name the queues, tiercel depths QUEUE ...")
    found = survey(amqp_url, names or list(owners), management_url)
    require(amqp_url, names, found)
    chosen = {owners[name] for name in names if name in owners}
    notes = [note for name, note in topologies.items() if not names or name in chosen]
    return Survey(queues=found, own=[_own_of(redis_urls, note) for note in notes])


def _known(redis_urls: tuple[str, ...]) -> tuple[Mapping[str, str], Mapping[str, TopologyNote]]:
    """Return the topology of each queue, and the topologies; none without a Redis."""
    if not redis_urls:
        return {}, {}
    with closing(Registry(redis_urls[0])) as registry:
        return registry.queues(), registry.topologies()


def _own_of(redis_urls: tuple[str, ...], note: TopologyNote) -> Own:
    with closing(TopologyReader(redis_urls, note)) as reader:
        return reader.read(Window.ALL_TIME).own

"""One look at all queues: RabbitMQ's, and tiercel's own in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from tiercel.acker.metrics.windows import Window
from tiercel.queues.broker.depths import DepthReader, require
from tiercel.workers.control.registry import Registry, TopologyNote
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.overview import SINK, SOURCE, Own, QueueRow
from tiercel.workers.monitoring.watcher import Addresses, TopologyReader


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Content of ``tiercel depths``."""

    queues: Sequence[QueueRow]
    # Of the topologies that these queues belong to.
    own: Sequence[Own]
    # Some figures of the queues are RabbitMQ's statistics, which are some seconds old.
    lags: bool


class Surveyor:
    """Takes one survey after the other."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._reader = DepthReader(addresses.amqp_url or "", addresses.management_url)

    def take(self, names: Sequence[str]) -> Survey:
        """Look at these queues, or without names at those of all topologies that ran.

        Raises UsageError if there are none, QueueMissingError for one of ``names``,
        AckerError, QueuesError.
        """
        addresses = self._addresses
        owners, topologies = _known(addresses.redis_urls)
        if not names and not owners:
            raise UsageError(
                "no topology has run here yet: name the queues, tiercel depths QUEUE ..."
            )
        sinks = {queue: note.name for note in topologies.values() for queue in note.graph.sinks}
        uses = {**dict.fromkeys(sinks, SINK), **dict.fromkeys(owners, SOURCE)}
        found = self._reader.look(names or list(dict.fromkeys([*owners, *sinks])))
        require(addresses.amqp_url or "", names, found)
        known = {**sinks, **owners}
        chosen = {known[name] for name in names if name in known}
        notes = [note for name, note in topologies.items() if not names or name in chosen]
        return Survey(
            queues=[QueueRow(depth=depth, use=uses.get(depth.name, "")) for depth in found],
            own=[_own_of(addresses.redis_urls, note) for note in notes],
            lags=any(depth.unacked is not None for depth in found),
        )

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._reader.close()


def _known(redis_urls: tuple[str, ...]) -> tuple[Mapping[str, str], Mapping[str, TopologyNote]]:
    """Return the topology of each queue, and the topologies; none without a Redis."""
    if not redis_urls:
        return {}, {}
    with closing(Registry(redis_urls[0])) as registry:
        return registry.queues(), registry.topologies()


def _own_of(redis_urls: tuple[str, ...], note: TopologyNote) -> Own:
    with closing(TopologyReader(redis_urls, note)) as reader:
        return reader.read(Window.ALL_TIME).own

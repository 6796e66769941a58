"""Servers that have replicas: one of them dies under a steady load, and another takes over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from acker.layout import shard_prefix, topology_prefix
from compose import EmbeddedRedis
from tests.brokers import ClusteredRabbitMQ
from tests.faults import numbered
from tests.faults.stack import Stack
from tests.replicas import ClusteredRedis, WatchedRedis
from tests.servers import EMBEDDED
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.embedded]


class Replicated(Stack):
    """The topology finds the servers by itself: no proxy could be in all the places where they may be."""

    @contextmanager
    def _wire(self, url: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(url=url)


def started(tmp_path_factory: pytest.TempPathFactory, **kinds) -> Replicated:
    folder = tmp_path_factory.mktemp("effects")
    return Replicated(folder, master="local[2]", servers=replace(EMBEDDED, **kinds))


def test_sentinels_promote_the_replica(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Killed at first, then stopped: its connections break, then they stay open and nothing answers."""
    with started(tmp_path_factory, redis=WatchedRedis) as stack:
        watched: WatchedRedis = stack.redis
        first = watched.primary

        def killed() -> None:
            first.kill()
            wait_until(lambda: watched.primary is not first, 60, "the Sentinels to promote the replica")

        assert stack.survives("Redis under Sentinels: primary killed", killed).dead_lettered == 0
        first.start()
        wait_until(lambda: first.synced, 60, "the old primary to follow the new one")
        second = watched.primary

        def stopped() -> None:
            second.pause()
            wait_until(lambda: watched.primary is not second, 60, "the Sentinels to promote the replica")

        assert stack.survives("Redis under Sentinels: primary stands still", stopped).dead_lettered == 0
        second.resume()


def test_a_cluster_promotes_replicas(tmp_path_factory: pytest.TempPathFactory) -> None:
    """First the primary of the ledger's shard, then that of the relay."""
    with started(tmp_path_factory, redis=ClusteredRedis) as stack:
        cluster: ClusteredRedis = stack.redis
        for what, key in (("ledger", shard_prefix(numbered.NAME, 0)), ("relay", topology_prefix(numbered.NAME))):
            primary = cluster.primary_of(key)

            def killed(key: str = key, primary: EmbeddedRedis = primary) -> None:
                primary.kill()
                wait_until(lambda: cluster.primary_of(key) is not primary, 60, "the cluster to promote a replica")

            assert stack.survives(f"Redis Cluster: primary of the {what} killed", killed).dead_lettered == 0
            primary.start()
            # Both may be on one server, and the next one to die must have a replica again.
            wait_until(lambda old=primary: old.synced, 60, "the old primary to follow the new one")


def test_a_broker_of_three_loses_the_node_that_everybody_uses(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All addresses begin with the node that is killed; the queue has its messages on all three."""
    with started(tmp_path_factory, rabbitmq=ClusteredRabbitMQ) as stack:
        first = stack.rabbitmq.nodes[0]
        assert stack.survives("RabbitMQ of three nodes: one killed, and stays away", first.kill).dead_lettered == 0
        first.start()

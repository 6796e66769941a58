"""Servers with replicas: one server dies under a steady load, and another takes over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.faults import numbered
from tests.faults.stack import Stack
from tests.support.broker import plain_channel, to_queues, unique
from tests.support.brokers import ClusteredRabbitMQ
from tests.support.load import PATIENCE
from tests.support.replicas import ClusteredRedis, WatchedRedis
from tests.support.servers import EMBEDDED, TroubledRedis
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.layout import shard_prefix, topology_prefix

pytestmark = [pytest.mark.timeout(900), pytest.mark.embedded]


def publish_in_the_end(publisher: Publisher, messages: list[tuple[str, bytes]]) -> None:
    """Offers refused messages again, as users must while a quorum queue has no leader."""
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while messages:
        fates = publisher.publish_each(to_queues(messages))
        messages = [
            message for message, fate in zip(messages, fates, strict=True) if fate is not None
        ]
        assert not messages or time.monotonic() < deadline, next(filter(None, fates))


class Replicated(Stack):
    """The topology finds the servers by itself, since a proxy could not be in all the places where
    they may be.
    """

    @contextmanager
    def _wire(self, url: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(url=url)


def started(tmp_path_factory: pytest.TempPathFactory, **kinds) -> Replicated:
    folder = tmp_path_factory.mktemp("effects")
    return Replicated(folder, master="local[2]", servers=replace(EMBEDDED, **kinds))


@pytest.mark.parametrize(
    ("what", "hurt", "mend"),
    [
        ("killed", TroubledRedis.kill, TroubledRedis.start),
        # Its connections stay open, without an answer.
        pytest.param(
            "stands still", TroubledRedis.pause, TroubledRedis.resume, marks=pytest.mark.slow
        ),
    ],
)
def test_sentinels_promote_the_replica(
    what: str,
    hurt: Callable[[TroubledRedis], None],
    mend: Callable[[TroubledRedis], object],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with started(tmp_path_factory, redis=WatchedRedis) as stack:
        watched: WatchedRedis = stack.redis
        primary = watched.primary

        def promoted() -> None:
            hurt(primary)
            wait_until(
                lambda: watched.primary is not primary, 60, "the Sentinels to promote the replica"
            )

        survived = stack.survives(f"Redis under Sentinels: primary {what}", promoted)
        assert survived.dead_lettered == 0
        mend(primary)
        wait_until(lambda: primary.synced, 60, "the old primary to follow the new one")


def test_a_cluster_promotes_replicas(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kill the primary of the ledger's shard, then of the lease, then of an inbox."""
    with started(tmp_path_factory, redis=ClusteredRedis) as stack:
        cluster: ClusteredRedis = stack.redis
        task = stack.bolt_tasks[-1]
        inbox = f"tiercel:{{{numbered.NAME}:inbox:{task // 4}}}:{task}:"
        keys = {
            "ledger": shard_prefix(numbered.NAME, 0),
            "lease": topology_prefix(numbered.NAME),
            "inbox": inbox,
        }
        for what, key in keys.items():
            primary = cluster.primary_of(key)

            def killed(key: str = key, primary: TroubledRedis = primary) -> None:
                primary.kill()
                wait_until(
                    lambda: cluster.primary_of(key) is not primary,
                    60,
                    "the cluster to promote a replica",
                )

            assert (
                stack.survives(f"Redis Cluster: primary of the {what} killed", killed).dead_lettered
                == 0
            )
            primary.start()
            # Both may be on one server, and the next server to die needs a replica again.
            wait_until(lambda old=primary: old.synced, 60, "the old primary to follow the new one")


def test_a_broker_of_three_loses_the_node_that_everybody_uses(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """All addresses begin with the node that is killed; the queue has its messages on all three."""
    with started(tmp_path_factory, rabbitmq=ClusteredRabbitMQ) as stack:
        first = stack.rabbitmq.nodes[0]
        stack.survives("RabbitMQ of three nodes: one killed, and stays away", first.kill)
        first.start()


def test_a_publisher_finds_the_new_leaders() -> None:
    """Among several queues, some are used between two leaders.

    RabbitMQ 3.10 would then refuse for as long as the channel lives.
    """
    queues = [unique() for _ in range(20)]
    with ClusteredRabbitMQ() as cluster:
        with plain_channel(cluster.nodes[0].url) as channel:
            for queue in queues:
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        with Publisher(cluster.url, patience=PATIENCE) as publisher:
            publish_in_the_end(publisher, [(queue, b"before") for queue in queues])
            cluster.nodes[0].kill()
            publish_in_the_end(publisher, [(queue, b"after") for queue in queues])

"""What happens when Redis, or the way to it, fails."""

from __future__ import annotations

import threading
import time
from urllib.parse import urlsplit

import pytest

from acker.redis_client import connect
from compose import EmbeddedRedis
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(400)


def test_redis_is_killed_and_starts_empty(stack: Stack) -> None:
    def fault() -> None:
        stack.services.redis.kill()
        stack.services.redis.restart(keep_data=False)

    stack.survives("Redis: SIGKILL and start, empty", fault)


def test_redis_restarts_with_its_data(stack: Stack) -> None:
    stack.survives("Redis: restart with its data", lambda: stack.services.redis.restart(keep_data=True))


def test_redis_stands_still(stack: Stack) -> None:
    def fault() -> None:
        stack.services.redis.pause()
        threading.Event().wait(10)
        stack.services.redis.resume()

    stack.survives("Redis: SIGSTOP for 10 s", fault)


def test_the_scripts_are_flushed(stack: Stack) -> None:
    def fault() -> None:
        client = connect(stack.services.redis_url)
        for _ in range(20):
            client.script_flush()
            time.sleep(0.1)
        client.close()

    stack.survives("Redis: scripts flushed, 20 times in 2 s", fault)


def test_replies_are_lost(stack: Stack) -> None:
    def fault() -> None:
        for _ in range(40):
            stack.redis_wire.lose_next()
            time.sleep(0.1)
        assert stack.redis_wire.lost >= 20

    stack.survives("Redis: a reply lost every 0.1 s for 4 s", fault)


def test_connections_to_redis_are_cut(stack: Stack) -> None:
    stack.survives("Redis: connections cut", stack.redis_wire.cut)


def test_connections_to_redis_are_half_open(stack: Stack) -> None:
    stack.survives("Redis: connections half-open", stack.redis_wire.mute)


def test_a_failover_to_a_replica_that_is_empty(stack: Stack) -> None:
    with EmbeddedRedis(urlsplit(stack.services.redis_url).password) as replica:

        def fault() -> None:
            stack.services.redis.pause()
            stack.redis_wire.retarget(replica.url)

        try:
            stack.survives("Redis: failover to an empty replica", fault)
        finally:
            stack.redis_wire.retarget(stack.services.redis.url)
            stack.services.redis.resume()
    stack.survives("Redis: and back", lambda: None)

"""A Redis whose memory is full: tuples in flight end and make room, and nothing is lost, even if
workers die and start meanwhile.
"""

import json
import secrets
import signal

import pytest

from tests.faults.burdens import FILLING, PARTS, Executions
from tests.faults.wired import Wired
from tests.support.children import kill
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.redis.clients import connect

pytestmark = pytest.mark.timeout(600)

MIB = 1024 * 1024
TEXT_BYTES = 20_000


@pytest.fixture
def redis_of(request):
    def opened(wired):
        client = connect(wired.redis.url)
        request.addfinalizer(client.close)
        return client

    return opened


def publish(wired, numbers):
    with Publisher(wired.rabbitmq.url) as publisher:
        publisher.publish(
            FILLING,
            [
                json.dumps({"number": n, "text": secrets.token_hex(TEXT_BYTES // 2)}).encode()
                for n in numbers
            ],
        )


def all_done(wired, count):
    wait_until(
        lambda: len(Executions(wired.folder).done) == count * PARTS,
        240,
        f"all parts of {count} messages to be processed",
    )


@pytest.mark.slow
def test_a_redis_that_is_full_drains_by_itself_and_workers_that_start_meanwhile_wait(
    tmp_path, servers, capfd, redis_of
):
    said = []

    def lines(*parts):
        said.append(capfd.readouterr().err)
        text = "".join(said)
        return [line for line in text.splitlines() if all(part in line for part in parts)]

    with Wired(
        "tests.faults.burdens:filling", FILLING, tmp_path, master="local[2]", servers=servers
    ) as wired:
        wired.spark_run()
        publish(wired, range(100))
        all_done(wired, 100)
        redis = redis_of(wired)
        limit = redis.info("memory")["used_memory"] + 6 * MIB
        redis.config_set("maxmemory", limit)
        publish(wired, range(100, 1_600))
        wait_until(lambda: lines("Redis is full", "raise its maxmemory"), 120, "it to be said")
        all_done(wired, 1_600)
        wired.rests(60)

        redis.config_set("maxmemory", 1)
        publish(wired, range(1_600, 1_650))
        kill(wired.child("0"), signal.SIGKILL)
        kill(wired.child("driver"), signal.SIGKILL)
        for process in ("texts-0", "driver"):
            wait_until(
                lambda process=process: lines(process, "Redis is full", "waits for Redis"),
                120,
                f"{process} to wait for memory",
            )
        redis.config_set("maxmemory", limit)
        all_done(wired, 1_650)
        wired.rests(60)
        assert not wired.counts()["failed"]
        assert wired.dead_lettered() == 0

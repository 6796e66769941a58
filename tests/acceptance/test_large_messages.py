"""A message of 16 MiB passes the whole topology; a larger one is dead-lettered with its size. A
message whose output is too large is dead-lettered too, without delaying others.
"""

import hashlib
import json
import random
from pathlib import Path

import pytest

from tests.acceptance import large
from tests.support.broker import put
from tests.support.waiting import wait_until
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.queues.broker.depths import depths
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.publishing.dead_letters import show
from tiercel.workers.config import Settings
from tiercel.workers.local.run import LocalRun

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def settings(services, tmp_path, monkeypatch):
    monkeypatch.setenv(large.EFFECTS, str(tmp_path))
    return Settings.load(master="local[2]").with_services(
        services.amqp_url, services.redis_url, services.management_url
    )


@pytest.fixture
def effects(services, settings, tmp_path):
    declare_queue(services.amqp_url, WorkQueue(name=large.QUEUE))
    with LocalRun("tests.acceptance.large:topology", large.topology(), settings):
        yield tmp_path


@pytest.fixture
def gathered(services, settings, tmp_path):
    declare_queue(services.amqp_url, WorkQueue(name=large.FILES, delivery_limit=1))
    with LocalRun("tests.acceptance.large:exploding", large.exploding(), settings):
        yield tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_largest_message_passes_and_a_larger_one_is_dead_lettered_with_its_size(
    services, effects
):
    largest = random.randbytes(MAX_BODY_BYTES)
    too_large = bytes(MAX_BODY_BYTES + 1)
    put(services.amqp_url, large.QUEUE, too_large)
    with Publisher(services.amqp_url) as publisher:
        publisher.publish(large.QUEUE, [b"", largest, b"small"])
    expected = {hashlib.sha256(body).hexdigest() for body in (b"", largest, b"small")}
    wait_until(lambda: names(effects) == expected, 300, "the three messages to be processed")
    wait_until(
        lambda: depths(services.amqp_url, [large.QUEUE])[0].dead_lettered == 1,
        30,
        "the fourth to be dead-lettered",
    )
    assert f"{MAX_BODY_BYTES + 1}" in show(services.amqp_url, large.QUEUE)[0].reason


def test_a_message_of_which_a_bolt_makes_gigabytes_is_dead_lettered_alone(services, gathered):
    def publish(name, rows):
        put(services.amqp_url, large.FILES, json.dumps({"name": name, "rows": rows}).encode())

    publish("first", 1)
    wait_until(lambda: names(gathered) == {"first"}, 300, "the topology to be at work")
    publish("gigabytes", 56_000)
    publish("megabytes", 400)
    for n in range(50):
        publish(f"small {n}", 1)
    expected = {"first", "megabytes", *(f"small {n}" for n in range(50))}
    wait_until(lambda: names(gathered) == expected, 60, "its neighbours to be processed")
    wait_until(
        lambda: depths(services.amqp_url, [large.FILES])[0].dead_lettered == 1,
        60,
        "it to be dead-lettered",
    )
    [letter] = show(services.amqp_url, large.FILES)
    assert json.loads(letter.body)["name"] == "gigabytes"
    assert "'explode' emits more than 64 MiB in one call" in letter.reason

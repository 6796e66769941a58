"""A state on the whole stack: counts are exact although processes die and Spark repeats committed
tasks.
"""

import threading
from collections import Counter

import pytest

from tests.acceptance import counted
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import ledger_spec_of

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

SENTENCES = 1_800
# Sentences per second.
RATE = 300


@pytest.fixture
def count(tmp_path):
    with running(
        "tests.acceptance.counted:topology", tmp_path, counted.FOLDER, queues=(counted.QUEUE,)
    ) as count:
        yield count


@pytest.mark.quick
def test_every_word_counts_once_though_tasks_are_repeated_after_they_committed(count):
    store = RedisStateStore(ledger_spec_of(counted.topology(), (count.redis_url,)), run_number=0)
    metrics = RedisMetrics(count.redis_url, counted.NAME)
    lines = [
        f"the falcon {number % 97} and the tiercel {number % 7}" for number in range(SENTENCES)
    ]

    def published():
        for number, line in enumerate(lines):
            if number % (RATE // 10) == 0:
                threading.Event().wait(0.1)
            yield line.encode()

    def acked() -> int:
        return sum(task.get("acked", 0) for task in metrics.totals().get("sentences", {}).values())

    with Publisher(count.amqp_url) as publisher:
        publisher.publish(counted.QUEUE, [b"warm up"] * 10)
        wait_until(lambda: acked() == 10, 300, "the topology to run")
        publishing = threading.Thread(target=lambda: publisher.publish(counted.QUEUE, published()))
        publishing.start()
        while publishing.is_alive():
            (count.folder / "kill").touch()
            publishing.join(timeout=1)
        wait_until(lambda: acked() == SENTENCES + 10, 300, "all sentences to be processed")
    assert list(count.folder.glob("repeated-*")), (
        "no task was killed between its commit and its end"
    )

    spouts = Counter()
    for task in metrics.totals()["sentences"].values():
        spouts.update(task)
    assert not spouts["failed"], "sentences were replayed, so their words count again"
    expected = Counter(word for line in lines for word in line.split()) + Counter(warm=10, up=10)
    assert {
        decode_key(field): decode_value(raw) for field, raw in store.entries("count")
    } == expected
    store.close()

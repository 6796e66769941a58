"""``tiercel rebalance --parallelism`` on the whole stack under load: no message is lost, failed or
dead-lettered.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from typer.testing import CliRunner

from tests.acceptance import rebalanced
from tests.support.load import Load
from tests.support.running import running
from tests.support.standalone import Standalone
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import ledger_spec_of
from tiercel.workers.cli.app import app
from tiercel.workers.control.registry import topology_named

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]

RATE = 100


@pytest.fixture
def stack(tmp_path):
    with running(
        "tests.acceptance.rebalanced:topology",
        tmp_path,
        rebalanced.FOLDER,
        queues=(rebalanced.QUEUE,),
    ) as stack:
        yield stack


def written(stack) -> Counter[tuple[int, str]]:
    """Return (number, "task/tasks" of ``work``) of every tuple that reached the last bolt."""
    lines = [
        line.split() for path in stack.folder.iterdir() for line in path.read_text().splitlines()
    ]
    return Counter((int(number), place) for number, place in lines)


def places(stack) -> set[str]:
    return {place for _, place in written(stack)}


def rebalance(stack, *options) -> str:
    answer = CliRunner().invoke(
        app, ["rebalance", rebalanced.NAME, *options, "--redis", stack.redis_url]
    )
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def tasks_of_work(stack) -> int:
    """Return the number of tasks as the monitor shows it."""
    note = topology_named(stack.redis_url, rebalanced.NAME)
    return next(len(bolt.tasks) for bolt in note.graph.bolts if bolt.name == "work")


def counted(stack) -> int:
    store = RedisStateStore(ledger_spec_of(rebalanced.topology(), (stack.redis_url,)), run_number=0)
    try:
        return sum(
            decode_value(raw)
            for field, raw in store.entries("count")
            if decode_key(field) is not None
        )
    finally:
        store.close()


def at_rest(stack) -> bool:
    [depth] = stack.depths(rebalanced.QUEUE)
    assert not depth.dead_lettered
    return not (depth.ready or depth.unacked or depth.delayed)


def test_a_bolt_gets_more_tasks_under_load_keeps_them_when_the_driver_dies_and_gives_them_back(
    stack,
):
    metrics = RedisMetrics(stack.redis_url, rebalanced.NAME)
    with Load(stack.amqp_url, rebalanced.QUEUE, RATE, 0) as load:
        wait_until(lambda: places(stack) == {"0/1"}, 240, "the topology to run")
        said = rebalance(stack, "--parallelism", "work=4")
        assert said.endswith("rebalanced has begun a new run with work=4\n")
        four = {f"{task}/4" for task in range(4)}
        wait_until(lambda: places(stack) == {"0/1", *four}, 120, "four tasks to work")
        assert tasks_of_work(stack) == 4

        before = sum(count for (_, place), count in written(stack).items() if place in four)
        again = sum(
            each - 1 for each in Counter(number for number, _ in written(stack).elements()).values()
        )
        assert not again, "what was on its way was finished first"
        os.kill(stack.run.driver.pid, signal.SIGKILL)
        wait_until(lambda: sum(written(stack).values()) > before + 5 * RATE, 120, "another driver")
        assert places(stack) == {"0/1", *four}, "it obeys the order that its predecessor was given"

        rebalance(stack, "--parallelism", "work=default", "--parallelism", "record=3")
        wait_until(lambda: tasks_of_work(stack) == 1, 60, "the monitor to know")
        now = sum(written(stack).values())
        wait_until(lambda: sum(written(stack).values()) > now + RATE, 120, "one task to work")
    published = set(load.published)
    wait_until(
        lambda: {number for number, _ in written(stack)} >= published,
        240,
        "every message to be processed",
    )
    wait_until(lambda: at_rest(stack), 120, "an empty queue")
    spouts = Counter()
    for task in metrics.totals()["numbers"].values():
        spouts.update(task)
    assert not spouts["failed"]
    assert not spouts["timeout"]
    repeats = sum(written(stack).values()) - len(published)
    assert repeats < 4 * RATE, "only what was on its way when the driver was killed"
    # A commit's messages may be given back after it wrote its state, if the driver is killed at
    # that moment.
    assert 0 <= counted(stack) - len(published) <= repeats + RATE


@pytest.mark.slow
def test_an_executor_that_joins_takes_from_what_waits_already(tmp_path, monkeypatch):
    # Executors have the environment of their host.
    monkeypatch.setenv(rebalanced.FOLDER, str(tmp_path / "work"))
    for folder in ("work", "hosts"):
        (tmp_path / folder).mkdir()
    with (
        Standalone(tmp_path / "hosts", hosts=1) as spark,
        running(
            "tests.acceptance.rebalanced:slow",
            tmp_path / "work",
            rebalanced.FOLDER,
            queues=(rebalanced.QUEUE,),
            master=spark.url,
        ) as stack,
    ):
        numbers = range(300)
        with Publisher(stack.amqp_url) as publisher:
            publisher.publish(rebalanced.QUEUE, [b'{"number": %d}' % number for number in numbers])
        wait_until(lambda: written(stack), 240, "the topology to run")
        spark.join()
        wait_until(lambda: spark.executors("host-2"), 120, "its executor")

        def both() -> bool:
            rebalance(stack)
            least = len(written(stack)) + 20
            wait_until(lambda: len(written(stack)) >= least, 60, "the new run to work")
            return len(places(stack)) == 2

        wait_until(both, 120, "both to work, once Spark knows the executor")
        wait_until(lambda: len(written(stack)) == len(numbers), 240, "every message")
        done = written(stack)
        assert {number for number, _ in done} == set(numbers)
        assert set(done.values()) == {1}, "a rebalance finishes what was begun"
        assert places(stack) == spark.hosts
        joined = sum(place.endswith("host-2-tmp") for _, place in done)
        assert joined >= len(numbers) // 10
        wait_until(lambda: at_rest(stack), 120, "an empty queue")

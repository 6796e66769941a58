"""An executor that stands still for a minute, in the middle of a tuple, and comes back with its old attempt."""

import os
import signal
import time
from collections import Counter
from contextlib import closing

import pytest

from spark_jobs.spark.run import ledger_spec_of
from spark_jobs.state import RedisStateStore
from spark_jobs.state.encoding import decode_key, decode_value
from tests.children import family
from tests.faults.burdens import HOLD_S, SPARK_GIVES_UP_S, VANISHED, Executions, hold_order
from tests.faults.executions import lives
from tests.faults.load import Load
from tests.faults.numbered import executor_of
from tests.faults.wired import Wired
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

RATE = 50
AWAY_S = 60.0
WITHIN_S = 200


@pytest.fixture(scope="module")
def wired(tmp_path_factory, servers):
    folder = tmp_path_factory.mktemp("effects")
    master = "local-cluster[2,1,1024]"
    with Wired("tests.faults.burdens:vanished", VANISHED, folder, master=master, servers=servers) as wired:
        wired.spark_run()
        yield wired


def tallied(wired):
    """Number to how often its tuples count in the state."""
    with closing(RedisStateStore(ledger_spec_of(wired.topology, (wired.redis_wire.url,)), epoch=0)) as store:
        return Counter({decode_key(key): decode_value(value) for key, value in store.entries("tally")})


def busy(wired):
    """The process that is in the tuple that lasts."""
    found = Executions(wired.folder)
    return found.busy if not hold_order(wired.folder).exists() else []


def stop(pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def go_on(pids):
    for pid in pids:
        if lives(pid):
            os.kill(pid, signal.SIGCONT)


def effects_of(wired, pid):
    return len((wired.folder / str(pid)).read_text().splitlines())


def test_an_executor_vanishes_for_a_minute_and_comes_back(wired):
    """The others go on, and what the old attempt does afterwards is refused."""
    assert AWAY_S > 2 * SPARK_GIVES_UP_S
    with Load(wired.rabbitmq.url, VANISHED, RATE, 0) as load:
        wait_until(lambda: len(Executions(wired.folder).done) > RATE, WITHIN_S, "the first messages")
        hold_order(wired.folder).touch()
        (worker,) = wait_until(lambda: busy(wired)[:1], 60, "a tuple that lasts")
        executor = executor_of(worker)
        stopped = family(executor)
        stop(stopped)
        stopped_at = time.time()
        wrote = effects_of(wired, worker)
        done = len(Executions(wired.folder).done)
        time.sleep(AWAY_S)
        meanwhile = len(Executions(wired.folder).done) - done
        assert effects_of(wired, worker) == wrote
        # The Python process alone at first: what ends it when its executor is gone still stands.
        go_on([worker])
        wait_until(lambda: effects_of(wired, worker) > wrote, 10 + HOLD_S, "the old attempt to go on")
        wait_until(lambda: not lives(worker), 60, "the old attempt to end by itself")
        go_on(stopped)
    wait_until(lambda: len(Executions(wired.folder).done) == len(load.published), WITHIN_S, "every message")
    wait_until(wired.at_rest, 60, "queue, inboxes and ledger to be empty")
    found = Executions(wired.folder)
    counts = wired.counts()
    late_s = max(at for at in found.first_at.values()) - stopped_at
    print(  # noqa: T201
        f"{len(load.published)} messages, {meanwhile} while it was away, the last {late_s:.0f} s after it went; "
        f"{found.begun.total() - len(load.published)} executed again; {counts['acked']} acked, {counts['released']} released"
    )
    assert meanwhile > 0
    assert tallied(wired) == dict.fromkeys(load.published, 1)
    assert counts["timeout"] == counts["failed"] == 0
    assert wired.dead_lettered() == 0

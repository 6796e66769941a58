"""An executor that stands still for half a minute in the middle of a tuple, and comes back with its
old attempt.
"""

import os
import signal
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.faults.burdens import HOLD_S, VANISHED, Executions, hold_order
from tests.faults.executions import lives
from tests.faults.numbered import executor_of
from tests.faults.wired import Wired
from tests.support.children import family
from tests.support.load import Load
from tests.support.waiting import wait_until
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import ledger_spec_of

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]

RATE = 50
# Several of Spark's heartbeats, which come every ten seconds.
AWAY_S = 35.0
# Ten to miss the process, four checks to be sure, and a new run: 17 seconds on a quiet machine.
FLOWS_AGAIN_S = 25.0
EXECUTORS = 2
WITHIN_S = 200


@contextmanager
def started(name, folder, servers):
    folder.mkdir()
    master = "local-cluster[2,1,1024]"
    with Wired(
        f"tests.faults.burdens:{name}", VANISHED, folder, master=master, servers=servers
    ) as wired:
        wired.spark_run()
        yield wired


def tallied(wired):
    """Return how often the tuples of each number count in the state."""
    with closing(
        RedisStateStore(ledger_spec_of(wired.topology, (wired.redis_wire.url,)), run_number=0)
    ) as store:
        return Counter(
            {decode_key(key): decode_value(value) for key, value in store.entries("tally")}
        )


def busy(wired):
    """Return the process that is executing the long tuple."""
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


def at_work(wired):
    """Return the processes that have done something in the last two seconds."""
    now = time.time()
    return [path.name for path in wired.folder.iterdir() if now - path.stat().st_mtime < 2.0]


def flows(wired, stopped_at):
    """Tell whether the tuples done in the last two seconds nearly match the published ones, over
    both tasks.
    """
    last_s = time.time() - 2.0
    lately = sum(at > last_s for at in Executions(wired.folder).first_at.values())
    # Work done before the executor vanished proves nothing.
    return last_s > stopped_at and lately >= 1.8 * RATE


def threads(pid):
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def vanish(wired, come_back):
    """Stop an executor in the middle of a tuple, and let it come back; then everything counts once.

    ``come_back`` is called with the pid of the Python process and the pids of all stopped
    processes.
    """
    with Load(wired.rabbitmq.url, VANISHED, RATE, 0) as load:
        wait_until(
            lambda: len(Executions(wired.folder).done) > RATE, WITHIN_S, "the first messages"
        )
        hold_order(wired.folder).touch()
        (worker,) = wait_until(lambda: busy(wired)[:1], 60, "a tuple that lasts")
        stopped = family(executor_of(worker))
        stop(stopped)
        stopped_at = time.time()
        done = len(Executions(wired.folder).done)
        wrote = effects_of(wired, worker)
        wait_until(
            lambda: flows(wired, stopped_at), FLOWS_AGAIN_S, "messages to flow on what is there"
        )
        flowed_s = time.time() - stopped_at
        time.sleep(AWAY_S - flowed_s)
        meanwhile = len(Executions(wired.folder).done) - done
        assert effects_of(wired, worker) == wrote
        come_back(worker, stopped)
        wait_until(
            lambda: len(at_work(wired)) == EXECUTORS, 90, "the run to have both executors again"
        )
    wait_until(
        lambda: len(Executions(wired.folder).done) == len(load.published), WITHIN_S, "every message"
    )
    wired.rests(60)
    found = Executions(wired.folder)
    counts = wired.counts()
    last_s = found.last_at - stopped_at
    print(  # noqa: T201
        f"{len(load.published)} messages, {meanwhile} while it was away, at full rate after "
        f"{flowed_s:.1f} s, the last {last_s:.0f} s after it went; "
        f"{found.begun.total() - len(load.published)} executed again; {counts['acked']} acked, "
        f"{counts['released']} released"
    )
    assert meanwhile > (AWAY_S - FLOWS_AGAIN_S) * RATE
    assert tallied(wired) == dict.fromkeys(load.published, 1)
    assert counts["timeout"] == counts["failed"] == 0
    assert wired.dead_lettered() == 0


def test_an_executor_vanishes_for_half_a_minute_and_comes_back(tmp_path, servers):
    """The old attempt's later work is refused. Meanwhile the other executor has its task."""
    with started("vanished", tmp_path / "effects", servers) as wired:

        def come_back(worker, stopped):
            before = threads(worker), effects_of(wired, worker)
            # At first only the Python process continues, because its executor would end it.
            go_on([worker])
            wait_until(
                lambda: effects_of(wired, worker) > before[1],
                10 + HOLD_S,
                "the old attempt to go on",
            )
            wait_until(lambda: threads(worker) < before[0], 30, "the old attempt to end by itself")
            go_on(stopped)

        vanish(wired, come_back)


@pytest.mark.slow
def test_an_executor_that_spark_has_given_up_comes_back(tmp_path, servers):
    """Spark has replaced the executor, and ends it."""
    with started("given_up", tmp_path / "effects", servers) as wired:

        def come_back(worker, stopped):
            # Spark asks an executor to end, and kills it ten seconds later.
            wait_until(lambda: not lives(worker), 60, "Spark to end the executor")
            go_on(stopped)

        vanish(wired, come_back)

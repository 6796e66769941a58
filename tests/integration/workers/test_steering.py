"""``tiercel activate``, ``deactivate`` and ``kill`` on Redis, with and without spout tasks and a
driver.
"""

import threading
import time
import uuid
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from tests.support.waiting import wait_until
from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder
from tiercel.workers.cli.app import app
from tiercel.workers.control.contract import NO_REBALANCE, State
from tiercel.workers.control.presence import Holder, Lease, Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry


@pytest.fixture
def name(redis_url):
    """The name of an announced topology with two spout tasks."""
    name = f"steered-{uuid.uuid4().hex}"
    builder = TopologyBuilder(name, Config(message_timeout_secs=0.5))
    builder.set_spout("lines", QueueSpout(name), parallelism=2)
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    Registry(redis_url).announce(builder.build())
    return name


class Workers:
    """Two spout tasks and a driver that obey like real ones."""

    def __init__(self, redis_url, name, pending):
        self.control = RedisControl(redis_url, name)
        self.pending = pending
        self.states = []
        presences = RedisPresences(redis_url, name)
        self.lease = Lease(presences)
        self.spout_seats = SpoutSeats(presences)
        self.stopped = threading.Event()
        self.stubborn = False
        self.run = "17"
        self.numbers = {"sink": 1}
        self._state = State.ACTIVE

    def work(self):
        while not self.stopped.wait(0.02):
            self.lease.take(Holder(driver="driver", run=self.run, parallelism=self.numbers))
            active = self._state is State.ACTIVE
            for task in (1, 2):
                presence = Presence(active=active, pending=self.pending)
                self.spout_seats.report("worker", task, presence)
                self._state = self.control.ask(State.ACTIVE)
            if self._state not in self.states:
                self.states.append(self._state)
            if self._state is State.KILLED and not self.stubborn:
                break
        self.lease.leave("driver")
        for task in (1, 2):
            self.spout_seats.leave("worker", task)


@pytest.fixture
def workers(redis_url, name):
    @contextmanager
    def run(pending=0):
        made = Workers(redis_url, name, pending)
        thread = threading.Thread(target=made.work)
        thread.start()
        try:
            wait_until(
                lambda: made.states and made.spout_seats.present(range(1, 3)).keys() == {1, 2}
            )
            yield made
        finally:
            made.stopped.set()
            thread.join()

    return run


def test_the_spouts_of_a_running_topology_are_deactivated_and_activated(tiercel, name, workers):
    with workers(pending=1_234):
        assert tiercel("deactivate", name) == (
            0,
            f"{name} is deactivated, 2,468 messages in flight\n",
        )
        assert tiercel("activate", name) == (0, f"{name} is active, 2,468 messages in flight\n")


def test_a_topology_that_does_not_run_starts_as_it_was_told(tiercel, name, redis_url):
    assert tiercel("deactivate", name) == (
        0,
        f"{name} does not run now; it will start deactivated\n",
    )
    assert RedisControl(redis_url, name).state() is State.DEACTIVATED
    assert tiercel("kill", name) == (0, f"{name} does not run\n")
    assert RedisControl(redis_url, name).state() is State.ACTIVE


def test_kill_waits_until_nothing_is_in_flight_then_ends_everything(tiercel, name, workers):
    with workers(pending=3) as running:
        threading.Timer(4, setattr, [running, "pending", 0]).start()
        code, said = tiercel("kill", name, "--wait", "60")
        assert running.states == [State.ACTIVE, State.DEACTIVATED, State.KILLED]
        assert running.control.state() is State.ACTIVE, "for the next start"
    assert code == 0
    first, *_, last = said.splitlines()
    assert first.startswith(f"{name}: 6 messages in flight, waiting for ")
    assert last == f"{name} has ended"


def test_kill_waits_no_longer_than_it_is_told_or_the_message_timeout(tiercel, name, workers):
    for wait in (["--wait", "0"], []):
        with workers(pending=3) as running:
            code, said = tiercel("kill", name, *wait)
            assert running.states[-1] is State.KILLED
        assert code == 0
        assert said.splitlines()[-1] == f"{name} has ended"


def test_kill_waits_for_a_bolt_as_long_as_it_may_take(tiercel, name, workers, redis_url):
    builder = TopologyBuilder(name, Config(message_timeout_secs=0.5))
    builder.set_spout("lines", QueueSpout(name), parallelism=2)
    long = {"execute_timeout_secs": 3600}
    builder.set_bolt("sink", BasicBolt(), config=long).shuffle_grouping("lines")
    Registry(redis_url).announce(builder.build())
    with workers(pending=3) as running:
        threading.Timer(7, setattr, [running, "pending", 0]).start()
        code, said = tiercel("kill", name)
        assert running.pending == 0, "it was in flight for longer than the message timeout"
    assert code == 0
    first, *_, last = said.splitlines()
    waiting = f"{name}: 6 messages in flight, waiting for"
    assert first.startswith((f"{waiting} 3600 s", f"{waiting} 35"))
    assert last == f"{name} has ended"


def test_kill_names_what_does_not_end(tiercel, name, workers, monkeypatch):
    monkeypatch.setattr("tiercel.workers.control.steering.KILL_LASTS", timedelta(seconds=1))
    with workers() as running:
        running.stubborn = True
        code, said = tiercel("kill", name, "--wait", "0")
    assert code == 1
    assert "not ended yet: the driver, spout task 1, spout task 2" in said


def test_rebalance_waits_until_a_new_run_has_begun(tiercel, name, workers, redis_url):
    assert tiercel("rebalance", name) == (
        0,
        f"{name} does not run now; it is spread anew whenever it starts\n",
    )
    with workers() as running:
        wait_until(running.lease.holder)

        def begin():
            wait_until(lambda: running.control.rebalanced(NO_REBALANCE).number)
            running.run = "18"

        driver = threading.Thread(target=begin)
        driver.start()
        code, said = tiercel("rebalance", name)
        driver.join()
    assert code == 0
    assert said.splitlines() == [
        f"{name}: a new run begins; messages in flight are finished, or emitted again",
        f"{name} has begun a new run",
    ]


def test_rebalance_says_where_to_look_when_no_run_begins(tiercel, name, workers, monkeypatch):
    monkeypatch.setattr("tiercel.workers.control.steering._BEGIN_S", 0.5)
    with workers() as running:
        wait_until(running.lease.holder)
        code, said = tiercel("rebalance", name)
    assert code == 1
    assert (
        said.splitlines()[-1]
        == f"{name} has not begun a new run yet: the log of its driver says why"
    )


def test_a_number_of_tasks_is_ordered_and_seen_obeyed(tiercel, name, workers):
    with workers() as running:
        wait_until(running.lease.holder)

        def begin():
            wait_until(lambda: running.control.rebalanced(NO_REBALANCE).parallelism == {"sink": 4})
            running.run = "18"
            # This task began before the order.
            time.sleep(0.6)
            running.numbers = {"sink": 4}
            running.run = "19"

        driver = threading.Thread(target=begin)
        driver.start()
        code, said = tiercel("rebalance", name, "--parallelism", "sink=4")
        driver.join()
    assert code == 0
    assert said.splitlines()[-1] == f"{name} has begun a new run with sink=4"


def test_a_stopped_topology_starts_with_the_number_ordered_which_can_be_taken_back(
    tiercel, name, redis_url
):
    control = RedisControl(redis_url, name)
    assert tiercel("rebalance", name, "--parallelism", "sink=4") == (
        0,
        f"{name} does not run now; it will start with sink=4\n",
    )
    assert control.rebalanced(NO_REBALANCE).parallelism == {"sink": 4}
    assert tiercel("rebalance", name, "--parallelism", "sink=default") == (
        0,
        f"{name} does not run now; it will start with sink=default\n",
    )
    assert control.rebalanced(NO_REBALANCE).parallelism == {}


def test_a_driver_that_cannot_obey_is_told_of(tiercel, name, workers, monkeypatch):
    monkeypatch.setattr("tiercel.workers.control.steering._BEGIN_S", 4)
    with workers() as running:
        wait_until(running.lease.holder)
        running.numbers = {}

        def begin():
            wait_until(lambda: running.control.rebalanced(NO_REBALANCE).number)
            running.run = "18"

        driver = threading.Thread(target=begin)
        driver.start()
        code, said = tiercel("rebalance", name, "--parallelism", "sink=4")
        driver.join()
    assert code == 1
    assert said.splitlines()[-1].endswith(
        "its driver has other code, or an older tiercel; start it again"
    )


def test_an_order_that_another_terminal_overrides_says_so(tiercel, name, workers):
    with workers() as running:
        wait_until(running.lease.holder)

        def override():
            wait_until(lambda: running.control.rebalanced(NO_REBALANCE).number)
            running.control.rebalance({"sink": 7})
            running.numbers = {"sink": 7}
            running.run = "18"

        other = threading.Thread(target=override)
        other.start()
        code, said = tiercel("rebalance", name, "--parallelism", "sink=4")
        other.join()
    assert code == 1
    assert said.splitlines()[-1] == (
        f"{name} has begun a new run with sink=7: another order to rebalance came after this one"
    )


@pytest.mark.parametrize(
    ("ordered", "said"),
    [
        ("nobody=4", "has no bolt 'nobody'; its bolts are sink"),
        ("nobody=default", "has no bolt 'nobody'; its bolts are sink"),
        ("lines=2", "'lines' is a spout of "),
        ("sink=0", "bolt 'sink' cannot have '0' tasks: give a number from 1 to 10,000"),
        ("sink=10001", "bolt 'sink' cannot have '10001' tasks: give a number from 1 to 10,000"),
        ("sink", "write BOLT=N"),
    ],
)
def test_a_number_of_tasks_that_cannot_be_is_one_line_and_nothing_is_ordered(
    name, redis_url, ordered, said
):
    result = CliRunner().invoke(
        app, ["rebalance", name, "--parallelism", ordered, "--redis", redis_url]
    )
    assert said in str(result.exception)
    assert type(result.exception).__name__ == "UsageError"
    assert RedisControl(redis_url, name).rebalanced(NO_REBALANCE) == NO_REBALANCE


def test_an_order_for_a_bolt_that_the_code_has_lost_can_be_taken_back_and_not_be_given(
    tiercel, name, redis_url
):
    control = RedisControl(redis_url, name)
    control.rebalance({"lost": 3, "sink": 2})
    result = CliRunner().invoke(
        app, ["rebalance", name, "--parallelism", "lost=4", "--redis", redis_url]
    )
    assert (
        "has no bolt 'lost' any more: --parallelism lost=default takes the order for it back"
        in str(result.exception)
    )
    assert tiercel("rebalance", name, "--parallelism", "lost=default")[0] == 0
    assert control.rebalanced(NO_REBALANCE).parallelism == {"sink": 2}


def test_a_spout_worker_that_starts_leaves_what_the_driver_noted(redis_url):
    name = f"steered-{uuid.uuid4().hex}"
    builder = TopologyBuilder(name)
    builder.set_spout("lines", QueueSpout(name))
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    mine = builder.build()
    with closing(Registry(redis_url)) as registry:
        registry.announce_new(mine)
        assert len(registry.topologies()[name].graph.bolt_tasks) == 1
        registry.announce(mine.with_parallelism({"sink": 4}))
        registry.announce_new(mine)
        assert len(registry.topologies()[name].graph.bolt_tasks) == 4
        assert registry.topologies()[name].graph.queues == [name]


@pytest.mark.parametrize("command", ["activate", "deactivate", "rebalance", "kill"])
def test_an_unknown_topology_is_one_line_with_those_that_there_are(
    tiercel, name, command, redis_url
):
    result = CliRunner().invoke(app, [command, "nobody", "--redis", redis_url])
    assert "there is no topology 'nobody'; there are " in str(result.exception)
    assert name in str(result.exception)
    assert type(result.exception).__name__ == "UsageError"

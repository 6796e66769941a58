"""Each alert is raised by a real fault of its kind, and no alert is raised by normal work.

A real Prometheus scrapes a real monitor, with all durations of the rules divided by sixty. One
topology is broken and mended over and over, in the order of this file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.acceptance import alarmed
from tests.support.children import Python, python_processes
from tests.support.entered import Entered
from tests.support.monitors import monitor
from tests.support.prometheus import QUICKER, Prometheus
from tests.support.servers import EMBEDDED
from tests.support.staged import Part, Play, staged
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.layout import topology_prefix
from tiercel.acker.redis.clients import connect, connect_topology
from tiercel.compose.install import find_system_program
from tiercel.examples.word_count import topology as word_count
from tiercel.queues.broker.depths import depths
from tiercel.queues.errors import QueuesError
from tiercel.workers.config import Settings
from tiercel.workers.control.registry import Registry
from tiercel.workers.processes import Child

pytestmark = pytest.mark.timeout(900)

TOPOLOGY = "tests.acceptance.alarmed:topology"
# An alert is raised within this many seconds after its condition has held for long enough.
WITHIN_S = 60
# The monitor needs counts of sixty to ninety seconds to see that nothing is acked.
FOUND_S = {"TiercelNothingAcked": 90}
SETTLES_S = 90
# Longer than most rules look back, and than ``acked`` does.
CALM_S = 6
# Prometheus evaluates once per second.
ASKED_EVERY_S = 0.3
# No rule's wait and look-back together are longer.
HEALTHY_S = 35 * 60


class Feed:
    """Publishes messages at a rate per kind, until the end."""

    def __init__(self, amqp_url: str) -> None:
        self.rates: dict[str, float] = {}
        self._url = amqp_url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def put(self, kind: str, count: int) -> None:
        self._publish([(kind, number) for number in range(count)])

    def _run(self) -> None:
        due: dict[str, float] = {}
        last = time.monotonic()
        while not self._over.wait(ASKED_EVERY_S):
            now = time.monotonic()
            for kind, rate in self.rates.items():
                due[kind] = min(due.get(kind, 0.0) + rate * (now - last), 5 * rate)
            last = now
            bodies = [(kind, number) for kind in due for number in range(int(due[kind]))]
            due = {kind: count % 1 for kind, count in due.items()}
            # In some tests the broker is down or blocks.
            try:
                self._publish(bodies)
            except QueuesError:
                continue

    def _publish(self, messages: list[tuple[str, int]]) -> None:
        if not messages:
            return
        with Publisher(self._url, patience=timedelta(seconds=2)) as publisher:
            publisher.publish(
                alarmed.QUEUE,
                [
                    json.dumps({"kind": kind, "number": number}).encode()
                    for kind, number in messages
                ],
            )


class Alarmed(Entered):
    """The topology, its servers, its monitor and Prometheus."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.python = Python(folder)
        self._parts: dict[str, Child] = {}
        self._number = 0

    def _enter(self, exits: ExitStack) -> None:
        self.rabbitmq = exits.enter_context(EMBEDDED.rabbitmq())
        self.redis = exits.enter_context(EMBEDDED.redis())
        self.python.becomes("")
        environment = exits.enter_context(pytest.MonkeyPatch.context())
        environment.setenv(alarmed.FOLDER, str(self._folder))
        environment.setenv("PYSPARK_PYTHON", str(self.python.path))
        # A separate stack is enough; the processes find this checkout.
        environment.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        self._settings = Settings.load(master="local[2]").with_services(
            self.rabbitmq.url, self.redis.url, self.rabbitmq.management_url
        )
        self.start("driver")
        self.start("spout")
        exits.callback(self._end)
        urls = self.rabbitmq.url, self.redis.url, self.rabbitmq.management_url
        self.monitoring = exits.enter_context(ExitStack())
        url = self.monitoring.enter_context(monitor(self._folder, *urls))
        self.prometheus = exits.enter_context(Prometheus(self._folder, url))
        wait_until(self._declared, 120, "the queue")
        self.feed = Feed(self.rabbitmq.url)
        exits.callback(self.feed.close)

    def start(self, name: str) -> None:
        """Start the driver or the spout worker."""
        self._number += 1
        argv = [sys.executable, "-m", "tiercel", name, TOPOLOGY]
        child = Child(f"{name} {self._number}", argv, self._settings.as_environment())
        child.start()
        self._parts[name] = child

    def stop(self, name: str, grace_s: float = 30) -> None:
        """Stop the process as an operator does, or kill it without grace."""
        self._parts.pop(name).stop(timedelta(seconds=grace_s))

    def pid(self, name: str) -> int:
        return wait_until(lambda: self._parts[name].pid, 60, f"{name} to run")

    def tiercel(self, *words: str) -> str:
        """Run a command; return its output."""
        environment = {**os.environ, **self._settings.as_environment()}
        command = [sys.executable, "-m", "tiercel", *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ended(self, name: str) -> bool:
        return self._parts[name].exit_code is not None

    def acked(self) -> float:
        """Return how many messages were acked in the last seconds, as Prometheus sees it."""
        found = self.prometheus.values("sum(increase(tiercel_spout_acked_total[5s]))", "")
        return found.get("", 0.0)

    @contextmanager
    def broken(self):
        order = self._folder / alarmed.BROKEN
        order.touch()
        try:
            yield
        finally:
            order.unlink()

    def settles(self) -> None:
        """Wait until messages are acked and no alert's condition holds, for some seconds."""
        ill_at = time.monotonic()
        give_up = ill_at + SETTLES_S
        while (now := time.monotonic()) < ill_at + CALM_S:
            pending = self.prometheus.pending()
            if pending or not self.acked():
                ill_at = now
            assert now < give_up, f"not well: {pending or 'nothing is acked'}"
            time.sleep(ASKED_EVERY_S)

    def raises(self, *alerts: str) -> None:
        """Wait until all of these alerts fire, each within its time."""
        began = time.monotonic()
        left = set(alerts)
        while left:
            left -= self.prometheus.firing().keys()
            now_s = time.monotonic() - began
            late = {
                alert
                for alert in left
                if now_s > self.prometheus.for_s(alert) / QUICKER + WITHIN_S + FOUND_S.get(alert, 0)
            }
            assert not late, f"{late} not raised; raised: {set(alerts) - left}"
            time.sleep(ASKED_EVERY_S)

    def _declared(self) -> bool:
        try:
            return bool(depths(self.rabbitmq.url, [alarmed.QUEUE]))
        except QueuesError:
            return False

    def _end(self) -> None:
        for name in list(self._parts):
            self.stop(name, 20)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Alarmed(tmp_path_factory.mktemp("alarmed")) as running:
        running.feed.rates = {"good": 20}
        wait_until(running.acked, 300, "the first message to be acked")
        running.settles()
        yield running


@pytest.fixture
def alerts(stack):
    return stack.prometheus


def test_half_an_hour_of_health_raises_none(stack, alerts):
    """The test takes half a minute, which is half an hour for the rules."""
    began = time.monotonic()
    healthy_s = HEALTHY_S // QUICKER
    while time.monotonic() < began + healthy_s:
        assert not alerts.firing()
        time.sleep(1)
    held = alerts.values(
        f'count_over_time(ALERTS{{alertstate="firing"}}[{healthy_s}s])', "alertname"
    )
    assert not held


def rebalanced(stack):
    stack.tiercel("rebalance", alarmed.NAME, "--parallelism", "count=2")


def deactivated(stack):
    stack.tiercel("deactivate", alarmed.NAME)
    wait_until(lambda: not stack.acked(), 60, "the last ack")
    wait_until(lambda: not stack.prometheus.pending(), 20, "nothing to be wrong")
    stack.tiercel("activate", alarmed.NAME)


def restarted(stack):
    stack.stop("spout")
    stack.start("spout")


def killed_and_started(stack):
    stack.tiercel("kill", alarmed.NAME)
    wait_until(lambda: stack.ended("driver") and stack.ended("spout"), 60, "the end")
    wait_until(lambda: not stack.prometheus.pending(), 20, "nothing to be wrong")
    # Longer than the wait of its alert.
    for _ in range(4):
        assert not stack.prometheus.firing()
        time.sleep(1)
    stack.start("driver")
    stack.start("spout")


@pytest.mark.parametrize(
    "change",
    [
        rebalanced,
        pytest.param(deactivated, marks=pytest.mark.slow),
        pytest.param(restarted, marks=pytest.mark.slow),
        killed_and_started,
    ],
)
def test_an_orderly_change_raises_none(stack, alerts, change):
    """The condition of an alert may hold for a moment, shorter than its rule allows."""
    began = time.monotonic()
    change(stack)
    stack.settles()
    for alert, held_s in alerts.held_s(time.monotonic() - began).items():
        assert held_s < alerts.for_s(alert), alert


def test_bolts_that_fail_hold_and_take_long(stack, alerts):
    with stack.broken():
        stack.feed.rates = dict(alarmed.KINDS)
        stack.raises(
            "TiercelFailures",
            "TiercelBackOff",
            "TiercelTimeouts",
            "TiercelLatency",
            "TiercelPendingTooOld",
            "TiercelInboxGrowing",
            "TiercelDeadLetters",
        )
        for fired in alerts.firing().values():
            for alert in fired:
                texts = json.dumps(alert["annotations"])
                assert "no value" not in texts
                assert "error" not in texts.replace("tiercel errors", "")
        stack.feed.rates = {"good": 20}
    stack.tiercel("dead-letters", "purge", alarmed.QUEUE, "--yes")
    stack.settles()


def test_a_bolt_that_stays_paused(stack, alerts):
    stack.tiercel("pause", alarmed.NAME, "--bolt", "slow")
    stack.raises("TiercelBoltPaused")
    assert alerts.firing().keys() == {"TiercelBoltPaused"}
    stack.tiercel("resume", alarmed.NAME, "--bolt", "slow")
    stack.settles()


def test_two_topologies_on_one_queue_and_data_of_another_version(stack, alerts):
    """A second topology reads the same queue; then it becomes unreadable in Redis."""
    another = word_count()
    with closing(Registry(stack.redis.url)) as registry:
        registry.announce(another)
    with closing(connect_topology(stack.redis.url, another.name)) as client:
        client.hset(topology_prefix(another.name) + "metrics", "no counter", "x")
        stack.raises("TiercelUnreadable")
        client.delete(topology_prefix(another.name) + "metrics")
        client.hdel("tiercel:topologies", another.name)
    stack.settles()


def test_windows_that_stand_still(stack, alerts):
    sums = Part(source="orders", tasks=1, held=40)
    play = Play(name="standing", parts={"sums": sums}, silent_s=60)
    with staged(stack.redis.url, play):
        stack.raises("TiercelWindowsStand")
    with closing(connect(stack.redis.url)) as client:
        client.hdel("tiercel:topologies", play.name)
    stack.settles()


@pytest.mark.slow
def test_servers_that_refuse_writes(stack, alerts):
    with closing(connect(stack.redis.url)) as client:
        client.config_set("maxmemory", 1)
        stack.raises("TiercelServerRefusesWrites", "TiercelNothingAcked")
        assert len(alerts.firing()["TiercelServerRefusesWrites"]) == 1
        client.config_set("maxmemory", 0)
    stack.settles()
    stack.rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
    stack.raises("TiercelServerRefusesWrites")
    stack.rabbitmq.control("set_vm_memory_high_watermark", "0.4")
    stack.settles()


def test_servers_that_are_away_and_a_redis_that_comes_back_empty(stack, alerts):
    stack.rabbitmq.stop()
    stack.raises("TiercelServerAway")
    [away] = alerts.firing()["TiercelServerAway"]
    assert away["labels"]["server"] == "rabbitmq"
    stack.rabbitmq.start()
    stack.settles()
    stack.redis.stop()
    stack.raises("TiercelServerAway")
    [away] = alerts.firing()["TiercelServerAway"]
    assert away["labels"]["server"] == "redis"
    stack.redis.start()
    stack.settles()
    stack.redis.restart(keep_data=False)
    stack.raises("TiercelStatesLost")
    wait_until(stack.acked, SETTLES_S, "messages to be acked again")


def test_executors_without_python(stack):
    stack.python.becomes("exit 3")
    for pid in python_processes(stack.pid("driver")):
        os.kill(pid, 9)
    stack.raises("TiercelNoExecutor", "TiercelTaskWithoutProcess")
    stack.python.becomes("")
    wait_until(stack.acked, SETTLES_S, "messages to be acked again")


def test_processes_that_are_killed(stack, alerts):
    stack.stop("spout", 0)
    stack.feed.put("good", 1_500)
    stack.raises("TiercelNoConsumers", "TiercelQueueRising")
    stack.start("spout")
    wait_until(stack.acked, SETTLES_S, "messages to be acked again")
    stack.stop("driver", 0)
    stack.raises("TiercelNoDriver")
    stack.stop("spout", 0)
    stack.raises("TiercelNothingRuns")
    stack.tiercel("kill", alarmed.NAME)
    wait_until(
        lambda: "TiercelNothingRuns" not in alerts.firing(), 60, "it to be told that this is meant"
    )


def test_the_monitor(stack, alerts):
    stack.monitoring.close()
    stack.raises("TiercelMonitorGone")


def test_each_alert_is_raised_here():
    text = Path(__file__).read_text()
    raised = set(re.findall(r'"(Tiercel\w+)"', text))
    rules = (Path(__file__).parents[2] / "compose/alerts.yml").read_text()
    assert raised == set(re.findall(r"alert: (\w+)", rules))
    assert find_system_program("prometheus") is not None

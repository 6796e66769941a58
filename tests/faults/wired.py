"""A topology on private servers, each behind a proxy, with the means to inject faults and to
observe it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.entered import Entered
from tests.support.proxy import Proxy
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tiercel import RedisUnavailableError
from tiercel.acker.inbox.contract import InboxFigures
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis_ledger import open_ledger
from tiercel.queues.broker.depths import depths
from tiercel.queues.errors import QueuesError
from tiercel.spark_jobs.topology.graph import bolt_tasks, ledger_spec_of
from tiercel.workers.config import Settings, python_path
from tiercel.workers.control.presence import UNATTENDED_S, Lease
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.local.run import LocalRun
from tiercel.workers.processes import Child

# Variable that tells the bolts the folder of the effects.
EFFECTS = "TIERCEL_TEST_EFFECTS"


class Wired(Entered):
    """A running topology of one queue and one spout."""

    def __init__(
        self, name: str, queue: str, folder: Path, *, master: str, servers: Servers
    ) -> None:
        """``name`` is a ``module:function``; its bolts leave their effects in ``folder``."""
        self.name = name
        self.queue = queue
        self.folder = folder
        self._master = master
        self._servers = servers
        module, _, function = name.partition(":")
        self.topology = getattr(import_module(module), function)()
        (self.spout,) = self.topology.spouts
        self.bolt_tasks = bolt_tasks(self.topology)
        self._successors: dict[str, Child] = {}

    def _enter(self, exits: ExitStack) -> None:
        enter = exits.enter_context
        enter(pytest.MonkeyPatch.context()).setenv(EFFECTS, str(self.folder))
        self.rabbitmq = enter(self._servers.rabbitmq())
        self.redis = enter(self._servers.redis())
        self.broker_wire = enter(self._wire(f"{self.rabbitmq.url}?heartbeat=5"))
        self.redis_wire = enter(self._wire(self.redis.url))
        self._settings = Settings.load(master=self._master).with_services(
            self.broker_wire.url, self.redis_wire.url, self.rabbitmq.management_url
        )
        self.run = enter(LocalRun(self.name, self.topology, self._settings))
        self.wait_for_the_queue()

    def dead_lettered(self) -> int:
        """Count the messages in the dead-letter queue, waiting for the broker if needed."""

        def found() -> list[int]:
            try:
                count = depths(self.rabbitmq.url, [self.queue])[0].dead_lettered
            except QueuesError:
                return []
            assert count is not None, "there is no dead-letter queue"
            return [count]

        return wait_until(found, 60, "the broker to tell its dead letters")[0]

    def rests(self, within_s: float, name: str = "") -> None:
        """Wait until queue, inboxes and ledger are empty."""
        left = ""

        def empty() -> bool:
            nonlocal left
            left = self._left()
            return not left

        try:
            wait_until(empty, within_s)
        except AssertionError:
            raise AssertionError(f"{name}: not empty within {within_s} s: {left}") from None

    def _left(self) -> str:
        """Describe the contents of queue, inboxes and ledger; empty if they are."""
        try:
            waiting = {task: one.tuples for task, one in self._inboxes().items() if one.tuples}
            in_flight = self.in_flight()
            depth = depths(self.rabbitmq.url, [self.queue], self.rabbitmq.management_url)[0]
        except (RedisUnavailableError, QueuesError) as error:
            return str(error)
        left = waiting or in_flight or depth.ready or depth.unacked or depth.delayed
        return f"tuples by task {waiting}, {in_flight} trees, {depth}" if left else ""

    def in_flight(self) -> int:
        """Count the trees that the ledger waits for. Raises RedisUnavailableError."""
        with closing(open_ledger(self._ledger)) as ledger:
            return ledger.pending()

    def counts(self) -> Counter[str]:
        """Return the spout's counters, over all its tasks and processes."""
        found: Counter[str] = Counter()
        with closing(RedisMetrics(self.redis.url, self.topology.name)) as metrics:
            for counters in metrics.totals().get(self.spout, {}).values():
                found.update(counters)
        return found

    def spark_run(self) -> str:
        """Return the driver's run, once a process attends each bolt task: where the driver gave a
        run up, a new one begins.
        """

        def attended() -> str:
            presences = RedisPresences(self.redis_wire.url, self.topology.name)
            with closing(Lease(presences)) as lease:
                holder = lease.holder()
            if holder is None or not holder.run:
                return ""
            seen = [one.seen_s if one.adopted else None for one in self._inboxes().values()]
            return holder.run if all(age is not None and age < UNATTENDED_S for age in seen) else ""

        return wait_until(attended, 120, "a driver, and a process for each bolt task")

    def pid(self, name: str) -> int:
        return wait_until(lambda: self.child(name).pid, 60, f"{name} to run")

    def child(self, name: str) -> Child:
        """Return the driver, or a spout worker by its task number."""
        if name in self._successors:
            return self._successors[name]
        return self.run.driver if name == "driver" else self.run.spout(self.spout, int(name))

    def another_redis(self) -> Any:
        """Start one more server, which lives as long as this stack."""
        return self._exits.enter_context(self._servers.redis())

    def start_again(self, name: str) -> None:
        """Start a driver or spout worker that has ended, as an operator would."""
        arguments = (
            ["driver", self.name]
            if name == "driver"
            else ["spout", self.name, self.spout, "--task-index", name]
        )
        argv = [sys.executable, "-m", "tiercel", *arguments]
        child = Child(
            f"{name} again", argv, {**self._settings.as_environment(), **python_path(Path.cwd())}
        )
        child.start()
        self._exits.callback(child.stop, timedelta(seconds=10))
        self._successors[name] = child

    def wait_for_the_queue(self) -> None:
        """Wait until the queue is declared."""
        wait_until(self._declared, 60, "the workers to declare the queue")

    def signal(self, name: str, number: int) -> None:
        os.kill(self.pid(name), number)

    @property
    def _ledger(self) -> LedgerSpec:
        return ledger_spec_of(self.topology, (self.redis_wire.url,))

    def _inboxes(self) -> Mapping[int, InboxFigures]:
        """Return the inbox of each bolt task. Raises RedisUnavailableError."""
        with closing(open_inboxes(self._ledger)) as inboxes:
            return inboxes.figures(self.bolt_tasks)

    def _wire(self, url: str) -> Any:
        """Return the proxy to a server, or the server itself; both have a ``url``."""
        return Proxy(url)

    def _declared(self) -> bool:
        try:
            return bool(depths(self.rabbitmq.url, [self.queue]))
        except QueuesError:
            return False

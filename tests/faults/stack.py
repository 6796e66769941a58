"""The numbered topology on private servers, each behind a proxy that a fault can use."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from acker import LedgerUnavailableError, open_ledger
from queues.depths import depths
from queues.errors import QueuesError
from spark_jobs.job import ledger_spec_of, open_relay
from spark_jobs.levels import plan_topology
from tests.entered import Entered
from tests.faults import numbered
from tests.faults.load import Load
from tests.faults.meter import Meter
from tests.faults.report import REPORT, Shown
from tests.proxy import Proxy
from tests.servers import Servers
from tests.waiting import wait_until
from workers.config import Settings, python_path
from workers.local import LocalRun
from workers.processes import Child

NAME = "tests.faults.numbered:topology"
BEFORE_S = 4.0
"""How long the rate before the fault is measured."""
GOOD = 0.9
"""The share of the rate before, at which the topology has recovered."""
PROCESSED_WITHIN_S = 300


class Stack(Entered):
    """A running topology; each fault publishes numbers of its own, and waits for their effects."""

    def __init__(self, folder: Path, *, master: str, servers: Servers, rate: int = 500) -> None:
        """``folder`` for the effects; the load is of ``rate`` messages a second."""
        self.folder, self._master, self._servers, self.rate = folder, master, servers, rate
        REPORT.rate = rate
        self._next = 0
        self._successors: dict[str, Child] = {}

    def _enter(self, exits: ExitStack) -> None:
        enter = exits.enter_context
        enter(pytest.MonkeyPatch.context()).setenv(numbered.EFFECTS, str(self.folder))
        self.rabbitmq, self.redis = enter(self._servers.rabbitmq()), enter(self._servers.redis())
        self.broker_wire, self.redis_wire = (
            enter(self._wire(url)) for url in (f"{self.rabbitmq.url}?heartbeat=5", self.redis.url)
        )
        self.meter = enter(Meter(self.folder))
        self._settings = Settings.load(master=self._master).with_services(
            self.broker_wire.url, self.redis_wire.url, self.rabbitmq.management_url
        )
        self.run = enter(LocalRun(NAME, numbered.topology(), self._settings))
        self.wait_for_the_queue()
        began = time.monotonic()
        with self._load(100) as load:
            wait_until(lambda: self.meter.rate(began, time.monotonic()), 300, "the first message to be processed")
        wait_until(lambda: self.unprocessed(load.published) == 0, 300, "the first messages to be processed")

    def survives(self, name: str, fault: Callable[[], object], *, faults: Callable[[], int] = lambda: 1) -> Shown:
        """Under a steady load, inject a fault that is over when the call returns; then nothing may be missing or left.

        ``faults`` tells how many there were: each may have what is in flight processed again, and no more than that.
        """
        dead_before, rate = self.dead_lettered(), self.rate
        with self._load(rate) as load:
            wait_until(lambda: self.meter.rate(time.monotonic() - BEFORE_S, time.monotonic()) > GOOD * rate, 300, "the load")
            # At first it may be catching up, faster than the load.
            before = min(rate, self.meter.rate(time.monotonic() - BEFORE_S, time.monotonic()))
            fault()
            recovery = self.recovery(time.monotonic(), before, name)
        wait_until(
            lambda: self.unprocessed(load.published) <= self.dead_lettered() - dead_before, PROCESSED_WITHIN_S,
            f"{name}: every message to be processed or dead-lettered",
        )  # fmt: skip
        wait_until(self.at_rest, PROCESSED_WITHIN_S, f"{name}: queue, relay and ledger to be empty")
        shown = Shown(
            fault=name,
            published=len(load.published),
            repeated=self.meter.repeated(load.published),
            in_flight=faults() * numbered.IN_FLIGHT,
            dead_lettered=self.dead_lettered() - dead_before,
            recovery_s=recovery,
        )
        REPORT.add(shown)
        assert shown.repeated <= shown.in_flight
        assert shown.dead_lettered == 0
        return shown

    def recovery(self, since: float, rate: float, name: str) -> float:
        """Wait until it is as fast as it was before a fault; returns the seconds from ``since`` until then."""
        return wait_until(
            lambda: self.meter.recovered(since, GOOD * rate), PROCESSED_WITHIN_S,
            f"{name}: {GOOD:.0%} of {rate:.0f} messages a second",
        )[0]  # fmt: skip

    def unprocessed(self, numbers: range) -> int:
        """How many of these messages lack an effect."""
        return len(numbers) - self.meter.processed(numbers)

    def dead_lettered(self) -> int:
        """Messages in the dead-letter queue. Waits for the broker."""

        def found() -> list[int]:
            try:
                count = depths(self.rabbitmq.url, [numbered.QUEUE])[0].dead_lettered
            except QueuesError:
                return []
            assert count is not None, "there is no dead-letter queue"
            return [count]

        return wait_until(found, 60, "the broker to tell its dead letters")[0]

    def at_rest(self) -> bool:
        """Whether queue, relay and ledger are empty."""
        plan = plan_topology(numbered.topology(), max_lanes=1_000)
        url = self.redis_wire.url
        try:
            with closing(open_relay(url, plan)) as relay, closing(open_ledger(ledger_spec_of(plan, (url,)))) as ledger:
                left = relay.length() + ledger.pending()
            depth = depths(self.rabbitmq.url, [numbered.QUEUE], self.rabbitmq.management_url)[0]
        except (LedgerUnavailableError, QueuesError):
            return False
        return not (left or depth.ready or depth.unacked or depth.delayed)

    def spark_run(self) -> str:
        """Which run of the driver's it is: a new one begins where Spark gave one up."""
        with closing(open_relay(self.redis_wire.url, plan_topology(numbered.topology(), max_lanes=1_000))) as relay:
            return wait_until(relay.attendant, 60, "a driver")

    def pid(self, name: str) -> int:
        return wait_until(lambda: self.child(name).pid, 60, f"{name} to run")

    def child(self, name: str) -> Child:
        """The driver, or a spout worker by its task's number."""
        if name in self._successors:
            return self._successors[name]
        return self.run.driver if name == "driver" else self.run.spout("numbers", int(name))

    def another_redis(self) -> Any:
        """One more server, that lives as long as this stack."""
        return self._exits.enter_context(self._servers.redis())

    @contextmanager
    def ordered(self, *names: str) -> Iterator[None]:
        """Orders for the bolts, which stand until they are carried out or the block ends."""
        place = numbered.Order.place(self.folder)
        place.mkdir(exist_ok=True)
        for name in names:
            (place / name).touch()
        yield
        for name in names:
            (place / name).unlink(missing_ok=True)

    def carried_out(self, *names: str) -> None:
        """Give orders, and wait until somebody has carried them all out."""
        with self.ordered(*names):
            place = numbered.Order.place(self.folder)
            wait_until(lambda: not any((place / name).exists() for name in names), 120, f"{', '.join(names)} to be carried out")

    def start_again(self, name: str) -> None:
        """Start a driver or spout worker that has ended, as an operator would."""
        arguments = ["driver", NAME] if name == "driver" else ["spout", NAME, "numbers", "--task-index", name]
        argv = [sys.executable, "-m", "workers", *arguments]
        child = Child(f"{name} again", argv, {**self._settings.as_environment(), **python_path(Path.cwd())})
        child.start()
        self._exits.callback(child.stop, timedelta(seconds=10))
        self._successors[name] = child

    def wait_for_the_queue(self) -> None:
        """Until it is declared."""
        wait_until(self._declared, 60, "the workers to declare the queue")

    def signal(self, name: str, number: int) -> None:
        os.kill(self.pid(name), number)

    def _wire(self, url: str) -> Any:
        """What lies between the topology and a server, with a ``url``."""
        return Proxy(url)

    def _load(self, rate: int) -> Load:
        first, self._next = self._next, self._next + 10_000_000
        return Load(self.rabbitmq.url, numbered.QUEUE, rate, first)

    def _declared(self) -> bool:
        try:
            return bool(depths(self.rabbitmq.url, [numbered.QUEUE]))
        except QueuesError:
            return False

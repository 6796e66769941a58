"""The numbered topology on private servers, each behind a proxy that a fault can use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults import numbered
from tests.faults.executions import first_folder
from tests.faults.meter import Meter
from tests.faults.report import REPORT, Shown
from tests.faults.wired import Wired
from tests.support.load import Load
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tiercel import Publisher

NAME = "tests.faults.numbered:topology"
# Time for which the rate before the fault is measured.
BEFORE_S = 4.0
# The share of the earlier rate at which the topology counts as recovered.
GOOD = 0.9
# The least pace of a burst after a fault, relative to the pace before it.
SLOWEST = 0.2
PROCESSED_WITHIN_S = 300


class Stack(Wired):
    """The numbered topology; each fault publishes its own numbers and waits for their effects."""

    def __init__(
        self, folder: Path, *, master: str, servers: Servers, rate: int = 500, burst: int = 3_000
    ) -> None:
        """``folder`` holds the effects; the load is ``rate`` messages per second, and ``burst``
        messages come at once before and after each fault.
        """
        super().__init__(NAME, numbered.QUEUE, folder, master=master, servers=servers)
        self.rate = rate
        self.burst = burst
        # Numbers of the last fault's load.
        self.published = range(0)
        first_folder(folder).mkdir()
        REPORT.rate = rate
        self._next = 0
        # Messages per second of the burst after the last fault, which is also the one before the
        # next.
        self._pace = 0.0

    def _enter(self, exits: ExitStack) -> None:
        self.meter = exits.enter_context(Meter(self.folder))
        super()._enter(exits)
        began = time.monotonic()
        with self._load(100) as load:
            wait_until(
                lambda: self.meter.rate(began, time.monotonic()),
                300,
                "the first message to be processed",
            )
        wait_until(
            lambda: self.unprocessed(load.published) == 0, 300, "the first messages to be processed"
        )

    def survives(
        self, name: str, fault: Callable[[], object], *, faults: Callable[[], int] = lambda: 1
    ) -> Shown:
        """Under a steady load, inject a fault that is over when the call returns.

        Afterwards nothing may be missing or left.

        ``faults`` is the number of faults: each may repeat what is in flight, and no more.
        """
        dead_before = self.dead_lettered()
        rate = self.rate
        pace_before = self._pace or self.pace()
        with self._load(rate) as load:
            wait_until(
                lambda: (
                    self.meter.rate(time.monotonic() - BEFORE_S, time.monotonic()) > GOOD * rate
                ),
                300,
                "the load",
            )
            # At first it may be catching up, faster than the load.
            before = min(rate, self.meter.rate(time.monotonic() - BEFORE_S, time.monotonic()))
            fault()
            recovery = self.recovery(time.monotonic(), before, name)
        wait_until(
            lambda: self.unprocessed(load.published) <= self.dead_lettered() - dead_before,
            PROCESSED_WITHIN_S,
            f"{name}: every message to be processed or dead-lettered",
        )  # fmt: skip
        self.rests(PROCESSED_WITHIN_S, name)
        self.published = load.published
        self._pace = self.pace()
        shown = Shown(
            fault=name,
            published=len(load.published),
            repeated=self.meter.repeated(load.published),
            in_flight=faults() * numbered.IN_FLIGHT,
            dead_lettered=self.dead_lettered() - dead_before,
            recovery_s=recovery,
            pace=self._pace / pace_before,
        )
        REPORT.add(shown)
        assert shown.repeated <= shown.in_flight
        assert shown.dead_lettered == 0
        # Generous, because the machine may be busy. A bound that stayed as the fault left it made
        # the pace a hundredth.
        assert shown.pace > SLOWEST
        return shown

    def pace(self) -> float:
        """Return the messages per second of a burst, from its first publish on."""
        numbers = range(self._next, self._next + self.burst)
        self._next += 10_000_000
        began = time.monotonic()
        with Publisher(self.rabbitmq.url) as publisher:
            publisher.publish(numbered.QUEUE, [b'{"number": %d}' % number for number in numbers])
        wait_until(
            lambda: self.unprocessed(numbers) == 0, PROCESSED_WITHIN_S, "a burst to be processed"
        )
        return self.burst / (time.monotonic() - began)

    def recovery(self, since: float, rate: float, name: str) -> float:
        """Wait until the rate is what it was before the fault.

        Returns the seconds from ``since``.
        """
        return wait_until(
            lambda: self.meter.recovered(since, GOOD * rate), PROCESSED_WITHIN_S,
            f"{name}: {GOOD:.0%} of {rate:.0f} messages per second",
        )[0]  # fmt: skip

    def unprocessed(self, numbers: range) -> int:
        """Count the messages that lack an effect."""
        return len(numbers) - self.meter.processed(numbers)

    @contextmanager
    def ordered(self, *names: str, kill: str = numbered.EXECUTOR) -> Iterator[None]:
        """Give orders to the bolts, which stand until carried out or until the block ends.

        ``kill`` says what to kill.
        """
        place = numbered.Order.place(self.folder)
        place.mkdir(exist_ok=True)
        for name in names:
            # Written atomically, because a bolt may be reading.
            (place / f"{name}-new").write_text(kill)
            (place / f"{name}-new").rename(place / name)
        yield
        for name in names:
            (place / name).unlink(missing_ok=True)

    def carried_out(self, *names: str, kill: str = numbered.EXECUTOR) -> None:
        """Give orders, and wait until all are carried out."""
        place = numbered.Order.place(self.folder)
        struck = place / numbered.Order.STRUCK
        struck.unlink(missing_ok=True)
        with self.ordered(*names, kill=kill):
            wait_until(
                lambda: not any((place / name).exists() for name in names),
                120,
                f"{', '.join(names)} to be carried out",
            )
        wait_until(struck.exists, 30, f"{kill} to be killed")

    @property
    def struck_at(self) -> float:
        """Return the time of the last kill by an order, in seconds since the epoch."""
        return float((numbered.Order.place(self.folder) / numbered.Order.STRUCK).read_text())

    def _load(self, rate: int) -> Load:
        first = self._next
        self._next = self._next + 10_000_000
        return Load(self.rabbitmq.url, numbered.QUEUE, rate, first)

"""Effects that take place once, under each fault of the matrix and of a database: no published
number's row is missing or duplicated.

One number in ten is published twice, and some are dead-lettered when they are booked and then
requeued. Faults that empty Redis are left out, because they lose the state with its memory.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.faults import booked
from tests.faults.catalogue import FAULTS as OF_THE_MATRIX
from tests.faults.catalogue import SOAK
from tests.faults.wired import Wired
from tests.support.load import Load
from tests.support.postgres import libpq
from tests.support.proxy import Proxy
from tests.support.servers import Servers, embedded_postgres
from tests.support.waiting import wait_until
from tiercel.queues.publishing.dead_letters import requeue
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import ledger_spec_of

pytestmark = pytest.mark.timeout(3600)

# --fault-rate may lower it. A higher rate than the topology can process on a busy machine would
# show nothing more, and take minutes to work off after each fault.
RATE = 50
# Numbers per second that are published a second time.
REPEATED = 5
_WITHIN_S = 600
_EMPTIES_REDIS = {"Redis: SIGKILL, comes back empty"}
# These orders are for the bolts of another topology.
_OF_OTHER_BOLTS = {"bolt: 1 % of the tuples raise, for 10 s"}


class Books(Wired):
    """The topology on private servers, with a PostgreSQL behind a proxy too."""

    def __init__(self, folder: Any, *, servers: Servers, rate: int) -> None:
        super().__init__(
            "tests.faults.booked:topology", booked.QUEUE, folder, master="local[2]", servers=servers
        )
        self._rate = rate
        self._next = 1

    def _enter(self, exits: ExitStack) -> None:
        self.postgres = exits.enter_context(embedded_postgres())
        self.postgres_wire = exits.enter_context(Proxy(self.postgres.url))
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(booked.TABLE)
        environment = exits.enter_context(pytest.MonkeyPatch.context())
        for name, value in libpq(self.postgres_wire.url).items():
            environment.setenv(name, value)
        super()._enter(exits)
        self.survives(lambda: None)

    def survives(self, fault: Callable[[], object]) -> None:
        """Under a steady load, inject a fault that is over when the call returns; then each number
        ever published is booked once.
        """
        reject = self.folder / booked.REJECT
        reject.touch()
        first = self._next
        with (
            Load(self.rabbitmq.url, self.queue, self._rate, first) as load,
            Load(self.rabbitmq.url, self.queue, REPEATED, first) as again,
        ):
            time.sleep(3)
            fault()
            time.sleep(3)
        self._next = max(load.published.stop, again.published.stop)
        wait_until(self.dead_lettered, _WITHIN_S, "a number to die")
        reject.unlink()
        try:
            wait_until(self._settled, _WITHIN_S)
        except AssertionError:
            raise AssertionError(
                f"after {_WITHIN_S} s {self.dead_lettered()} are dead-lettered; {self._left()}"
            ) from None
        self.check()
        print(f"{self._next - first} numbers, {len(again.published)} of them twice")  # noqa: T201

    def _settled(self) -> bool:
        """Requeue dead letters, which may die again."""
        if self._left():
            return False
        if self.dead_lettered():
            requeue(self.rabbitmq.url, self.queue)
            return False
        return True

    def check(self) -> None:
        numbers = range(1, self._next)
        with psycopg.connect(self.postgres.url) as connection:
            rows = connection.execute("SELECT number, account FROM booked").fetchall()
        expected = [(n, n % booked.ACCOUNTS) for n in numbers]
        expected += [(-n, n % (booked.ACCOUNTS - 1)) for n in numbers]
        assert len(rows) == len(expected), f"{len(rows) - len(expected)} double or missing"
        assert sorted(rows) == sorted(expected)
        balances: dict[Any, int] = {"numbers": len(expected)}
        for number, account in expected:
            balances[account] = balances.get(account, 0) + number
        assert self.state() == balances

    def state(self) -> dict[Any, Any]:
        spec = ledger_spec_of(self.topology, (self.redis.url,))
        store = RedisStateStore(spec, run_number=0)
        found = {decode_key(key): decode_value(raw) for key, raw in store.entries("book")}
        store.close()
        return found


def database_killed(books: Books) -> None:
    books.postgres.kill()
    books.postgres.start()


def database_stands_still(books: Books) -> None:
    books.postgres.pause()
    time.sleep(10)
    books.postgres.resume()


def replies_of_the_database_lost(books: Books) -> None:
    for after in range(40):
        books.postgres_wire.lose_next(after=after % 8)
        time.sleep(0.1)


FAULTS: dict[str, Callable[[Any], object]] = {
    **{
        name: fault
        for name, fault in OF_THE_MATRIX.items()
        if name not in _EMPTIES_REDIS | _OF_OTHER_BOLTS
    },
    "PostgreSQL: SIGKILL and start": database_killed,
    "PostgreSQL: restart": lambda books: books.postgres.restart(keep_data=True),
    "PostgreSQL: SIGSTOP for 10 s": database_stands_still,
    "PostgreSQL: connections cut": lambda books: books.postgres_wire.cut(),
    "PostgreSQL: connections half-open": lambda books: books.postgres_wire.mute(),
    "PostgreSQL: a reply lost every 0.1 s for 4 s": replies_of_the_database_lost,
}


# Faults of the processes that have both effects in hand, and of their servers; the soak draws from
# all faults, and `make test-matrix` runs each.
_OF_THE_REST = {
    "Redis: a reply lost every 0.1 s for 4 s",
    "driver: SIGKILL",
    "PostgreSQL: SIGKILL and start",
}
_DRAWN = [name for name in FAULTS if name in SOAK[0][1] or name not in OF_THE_MATRIX]


@pytest.fixture(scope="module")
def books(
    tmp_path_factory: pytest.TempPathFactory, servers: Servers, pytestconfig: pytest.Config
) -> Iterator[Books]:
    rate = min(RATE, pytestconfig.getoption("fault_rate"))
    with Books(tmp_path_factory.mktemp("books"), servers=servers, rate=rate) as running:
        yield running


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in _OF_THE_REST else pytest.mark.slow) for name in FAULTS],
)
def test_each_number_is_booked_once_under_a_fault(books: Books, name: str) -> None:
    books.survives(lambda: FAULTS[name](books))


@pytest.mark.slow
def test_each_number_is_booked_once_in_a_soak(books: Books, pytestconfig: pytest.Config) -> None:
    minutes = pytestconfig.getoption("soak_minutes")
    seed = pytestconfig.getoption("soak_seed") or secrets.randbelow(2**32)
    print(f"soak of {minutes:g} minutes; to repeat it: --soak-seed={seed}")  # noqa: T201
    draw = random.Random(seed)

    def faults() -> None:
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            name = draw.choice(_DRAWN)
            print(f"  {time.strftime('%H:%M:%S')} {name}")  # noqa: T201
            FAULTS[name](books)
            time.sleep(5)

    books.survives(faults)

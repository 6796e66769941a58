"""Effects that take place once, under each fault of the matrix and those of a database: no row is
missing and none is double, against the numbers that were published.

Without the faults that empty Redis: there the state is gone, and its memory with it.
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
from tests.faults.wired import Wired
from tests.support.load import Load
from tests.support.postgres import libpq
from tests.support.proxy import Proxy
from tests.support.servers import Servers, embedded_postgres
from tests.support.waiting import wait_until
from tiercel.spark_jobs.spark.run import ledger_spec_of
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.redis_store import RedisStateStore

pytestmark = [pytest.mark.timeout(3600), pytest.mark.slow]

RATE = 200
_WITHIN_S = 300
_EMPTIES_REDIS = {"Redis: SIGKILL, comes back empty"}
# Ordered of the bolts of another topology.
_OF_OTHER_BOLTS = {"bolt: 1 % of the tuples raise, for 10 s"}


class Books(Wired):
    """The topology on private servers, with a PostgreSQL behind a proxy too."""

    def __init__(self, folder: Any, *, servers: Servers) -> None:
        super().__init__(
            "tests.faults.booked:topology", booked.QUEUE, folder, master="local[2]", servers=servers
        )
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
        that was ever published is booked once.
        """
        with Load(self.rabbitmq.url, self.queue, RATE, self._next) as load:
            time.sleep(3)
            fault()
            time.sleep(3)
        self._next = load.published.stop
        wait_until(
            lambda: self.rows() >= 2 * (self._next - 1), _WITHIN_S, "all numbers to be booked"
        )
        self.rests(_WITHIN_S)
        self.check()

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
        assert self.dead_lettered() == 0

    def rows(self) -> int:
        with psycopg.connect(self.postgres.url) as connection:
            found = connection.execute("SELECT count(*) FROM booked").fetchone()
        return found[0] if found else 0

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


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory, servers: Servers) -> Iterator[Books]:
    with Books(tmp_path_factory.mktemp("books"), servers=servers) as running:
        yield running


@pytest.mark.parametrize("name", FAULTS)
def test_each_number_is_booked_once_under_a_fault(books: Books, name: str) -> None:
    books.survives(lambda: FAULTS[name](books))


def test_each_number_is_booked_once_in_a_soak(books: Books, pytestconfig: pytest.Config) -> None:
    minutes = pytestconfig.getoption("soak_minutes")
    seed = pytestconfig.getoption("soak_seed") or secrets.randbelow(2**32)
    print(f"soak of {minutes:g} minutes; to repeat it: --soak-seed={seed}")  # noqa: T201
    draw = random.Random(seed)

    def faults() -> None:
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            name = draw.choice(sorted(FAULTS))
            print(f"  {time.strftime('%H:%M:%S')} {name}")  # noqa: T201
            FAULTS[name](books)
            time.sleep(5)

    books.survives(faults)

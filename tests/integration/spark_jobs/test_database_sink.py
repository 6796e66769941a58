"""``DatabaseSink`` in a topology, on real databases: each row is written once, and a refused row
fails alone.
"""

from __future__ import annotations

import json
import threading
import traceback
import uuid
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.exc import DBAPIError

from tests.support.proxy import Proxy
from tests.support.pump import Pump
from tests.support.waiting import wait_until
from tiercel import Config, DatabaseSink, Identity, TopologyBuilder, TopologyError
from tiercel.acker.ids import Said
from tiercel.spark_jobs.bolts import database_sink
from tiercel.spark_jobs.database import writer
from tiercel.spark_jobs.database.engine import engine_of
from tiercel.spark_jobs.database.rows import Fate, Row, WriterSettings
from tiercel.spark_jobs.emitting.record import Record
from tiercel.testing import FeederSpout, LocalCluster


def meant(sink):
    """Return the settings of a cluster in which the sink writes to its database."""
    return Config(extra={"database_url": sink._url})


class Running:
    """A feeder and a sink."""

    def __init__(self, sink, fields="id long, name string"):
        self.feeder = FeederSpout(fields=fields)
        builder = TopologyBuilder("rows")
        builder.set_spout("in", self.feeder)
        builder.set_bolt("out", sink).shuffle_grouping("in")
        self.cluster = LocalCluster(builder.build(), meant(sink))

    def __enter__(self):
        self.cluster.__enter__()
        return self

    def __exit__(self, *error):
        self.cluster.__exit__(*error)

    def send(self, *rows, identities=None):
        """Feed rows, each with its first value as message id and identity, and run."""
        known = [str(values[0]) for values in rows] if identities is None else identities
        for values, identity in zip(rows, known, strict=True):
            self.feeder.feed(values, values[0], identity=identity)
        self.cluster.run_until_idle()

    @property
    def acked(self):
        return self.cluster.acked("in")

    @property
    def failed(self):
        """Return the reason of each failed message id."""
        return dict(zip(self.cluster.failed("in"), self.cluster.fail_reasons("in"), strict=True))


class Database:
    """A table for this test alone."""

    def __init__(self, url):
        self.url = url
        self.table = f"rows_{uuid.uuid4().hex[:12]}"
        self.keys = f"{self.table}_tiercel_keys"
        self.engine = engine_of(url)
        self.run(f"CREATE TABLE {self.table} (id bigint PRIMARY KEY, name varchar(20) NOT NULL)")

    def run(self, statement, **values):
        try:
            with self.engine.begin() as connection:
                found = connection.execute(text(statement), values)
                return [tuple(row) for row in found] if found.returns_rows else []
        finally:
            self.engine.dispose()

    def rows(self):
        return self.run(f"SELECT id, name FROM {self.table} ORDER BY id, name")

    def number_of_keys(self):
        return self.run(f"SELECT count(*) FROM {self.keys} WHERE length(key) > 0")[0][0]

    def without_a_primary_key(self):
        self.run(f"DROP TABLE {self.table}")
        self.run(f"CREATE TABLE {self.table} (id bigint, name varchar(20) NOT NULL)")

    def sink(self, **settings):
        return DatabaseSink(self.url, self.table, **{"patience_secs": 20, **settings})


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    url = (
        f"sqlite:///{tmp_path / 'rows.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    return Database(url)


def test_each_tuple_is_a_row_and_its_key_is_beside_it(database):
    with Running(database.sink()) as running:
        running.send(*([n, f"name {n}"] for n in range(500)))
        assert running.acked == list(range(500))
    assert database.rows() == [(n, f"name {n}") for n in range(500)]
    assert database.number_of_keys() == 500


def test_a_message_that_comes_again_is_written_once(database):
    database.without_a_primary_key()
    with Running(database.sink()) as running:
        running.send([1, "a"], [2, "b"], [1, "a"])
        running.send([2, "b"], [3, "c"], [2, "b"])
    with Running(database.sink()) as again:  # another process, another run
        again.send([1, "a"], [3, "c"], [4, "d"])
        assert again.acked == [1, 3, 4]
    assert database.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_without_once_or_an_identity_it_is_written_each_time(database):
    database.without_a_primary_key()
    with Running(database.sink(once=False)) as running:
        running.send([1, "a"], [1, "a"])
        running.send([1, "a"])
    assert len(database.rows()) == 3
    assert database.keys not in inspect(database.engine).get_table_names()
    database.engine.dispose()
    with Running(database.sink()) as running:
        running.send([2, "a"], [2, "a"], identities=[None, None])
        assert running.acked == [2, 2]
    assert len(database.rows()) == 5
    assert database.number_of_keys() == 0


def test_another_message_with_the_same_identity_fails_with_the_reason(database):
    one, other = Identity(b"x", content=5), Identity(b"x", content=6)
    with Running(database.sink()) as running:
        running.send([1, "a"], identities=[one])
        running.send([2, "b"], [3, "c"], identities=[other, "y"])
        running.send([4, "a"], [5, "a"], identities=[one, Identity(b"x")])
        assert running.acked == [1, 3, 4, 5]
        assert "a message with the same identity but a different body" in running.failed[2]
    with Running(database.sink()) as running:
        both = [Identity(b"z", content=5), Identity(b"z", content=6)]
        running.send([6, "a"], [7, "b"], identities=both)
        assert running.acked == [6]
        assert "a different body was already written" in running.failed[7]
    assert [row[0] for row in database.rows()] == [1, 3, 6]


@pytest.mark.parametrize(
    "bad",
    [{7}, {0, 1, 250, 499}, pytest.param(set(range(0, 500, 2)), marks=pytest.mark.rest)],
)
def test_a_row_that_the_database_refuses_fails_alone_with_its_words(database, bad):
    with Running(database.sink()) as running:
        running.send(*([n, None if n in bad else "good"] for n in range(500)))
        assert running.acked == [n for n in range(500) if n not in bad]
        assert running.failed.keys() == bad
        assert "name" in running.failed[min(bad)]
        assert any(word in running.failed[min(bad)].lower() for word in ("null", "not-null"))
        # A refused row has left no key: once mended, it is written.
        running.send(*([n, "mended"] for n in sorted(bad)))
    assert len(database.rows()) == 500
    assert database.number_of_keys() == 500


def test_one_that_is_there_is_updated_by_its_primary_key(database):
    with Running(database.sink(mode="upsert")) as running:
        running.send([1, "a"], [2, "b"], [1, "c"], identities=["m1", "m2", "m3"])
        running.send([2, "d"], [1, "old"], identities=["m4", "m1"])
        assert len(running.acked) == 5
    assert database.rows() == [(1, "c"), (2, "d")]


def test_a_function_writes_with_the_open_transaction(database):
    database.run(f"INSERT INTO {database.table} VALUES (1, 'balance')")
    database.run(f"CREATE TABLE {database.table}_sums (name varchar(20) PRIMARY KEY, total bigint)")
    table = database.table

    def book(connection, tuples):
        for tup in tuples:
            if tup["id"] < 0:
                raise ValueError(f"{tup['id']} is negative")
            connection.execute(
                text(
                    f"INSERT INTO {table}_sums VALUES (:name, :amount) ON CONFLICT (name) "
                    f"DO UPDATE SET total = {table}_sums.total + excluded.total"
                ),
                {"name": tup["name"], "amount": tup["id"]},
            )

    with Running(database.sink(write=book)) as running:
        running.send([5, "a"], [7, "b"], [-1, "a"], [6, "a"])
        running.send([5, "a"], [6, "a"], [1, "b"])
        assert running.failed.keys() == {-1}
        assert "ValueError: -1 is negative" in running.failed[-1]
    assert sorted(database.run(f"SELECT * FROM {table}_sums")) == [("a", 11), ("b", 8)]


def test_a_function_that_is_called_again_gets_the_values_as_they_came(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'rows.db'}")

    def write(connection, tuples):
        for tup in tuples:
            tup["tags"].append("seen")
            connection.execute(
                text(f"INSERT INTO {database.table} VALUES (:id, :name)"),
                {"id": tup["id"], "name": " ".join(tup["tags"])},
            )
        if any(tup["id"] < 0 for tup in tuples):
            raise ValueError("it is negative")

    with Running(database.sink(write=write), "id long, tags array<string>") as running:
        running.send([1, ["a"]], [-2, ["b"]], [3, ["c"]])
        assert running.failed.keys() == {-2}
    assert database.rows() == [(1, "a seen"), (3, "c seen")]


def rolls_back(connection, tup):
    connection.rollback()


def rolls_back_and_raises(connection, tup):
    connection.rollback()
    raise ValueError("no")


def passes_over_an_error(connection, tup):
    with suppress(DBAPIError):
        connection.execute(text("SELECT no_such_function()"))
        pytest.fail("there is such a function")


@pytest.mark.parametrize("harm", [rolls_back, rolls_back_and_raises, passes_over_an_error])
def test_what_a_function_loses_is_not_acked(database, harm):
    def write(connection, tuples):
        for tup in tuples:
            if tup["name"] == "bad":
                harm(connection, tup)
            else:
                connection.execute(
                    text(f"INSERT INTO {database.table} VALUES (:id, :name)"),
                    {"id": tup["id"], "name": tup["name"]},
                )

    with Running(database.sink(write=write)) as running:
        running.send([1, "a"], [2, "b"], [3, "bad"])
        written = [row[0] for row in database.rows()]
        # SQLite goes on after an error, and the tuple had no other effect.
        assert [one for one in running.acked if one != 3] == written
        running.send([1, "a"], [2, "b"])
    assert database.rows() == [(1, "a"), (2, "b")]


async def waits(connection, tuples):
    pytest.fail("it cannot run")


class Waiting:
    async def __call__(self, connection, tuples):
        pytest.fail("it cannot run")


def yields(connection, tuples):
    yield pytest.fail("it cannot run")


@pytest.mark.parametrize("write", [waits, partial(waits), yields, Waiting()])
def test_a_function_that_would_never_run_is_refused(write):
    with pytest.raises(TopologyError, match=r"write is .* and would never run: write a plain"):
        DatabaseSink("sqlite:///x.db", "t", write=write)


@pytest.mark.parametrize("write", [waits, yields])
def test_a_function_whose_result_never_ran_fails_its_tuples(database, write):
    with Running(database.sink(write=lambda *given: write(given[0], given[1]))) as running:
        running.send([1, "a"])
        assert running.acked == []
        assert "which never ran: write a plain function" in running.failed[1]
    assert database.number_of_keys() == 0


def test_a_struct_is_written_to_a_json_column_as_a_sink_of_messages_writes_it(database):
    kind = "jsonb" if "postgres" in database.url else "json"
    database.run(f"DROP TABLE {database.table}")
    database.run(f"CREATE TABLE {database.table} (id bigint PRIMARY KEY, name {kind})")
    fields = "id long, name struct<price decimal(5,2), at timestamp, tags array<string>>"
    with Running(database.sink(), fields) as running:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        running.send([1, {"price": Decimal("9.50"), "at": at, "tags": ["ö"]}], [2, None])
        assert running.failed == {}
    [(_, found), _] = database.rows()
    # Not the null of JSON, which is a value.
    assert database.run(f"SELECT id FROM {database.table} WHERE name IS NULL") == [(2,)]
    assert (found if isinstance(found, dict) else json.loads(found)) == {
        "price": "9.50",
        "at": "2026-01-01T00:00:00+00:00",
        "tags": ["ö"],
    }


def test_a_row_on_which_a_function_of_sqlite_fails_holds_no_others(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'rows.db'}")
    database.run(f"DROP TABLE {database.table}")
    database.run(
        f"CREATE TABLE {database.table} (id bigint, name text CHECK (json_extract(name, '$') > 0))"
    )
    with Running(database.sink()) as running:
        running.send([1, "1"], [2, "no json"], [3, "3"])
        assert running.acked == [1, 3]
        assert "malformed JSON" in running.failed[2]
    assert database.rows() == [(1, "1"), (3, "3")]


def test_a_database_that_may_only_be_read_is_waited_for(postgres, errors):
    database = Database(postgres().url)
    setting = "default_transaction_read_only"
    database.run(f"ALTER DATABASE postgres SET {setting} = on")

    def promote():
        wait_until(lambda: errors)
        database.run(f"SET TRANSACTION READ WRITE; ALTER DATABASE postgres RESET {setting}")

    promoting = threading.Thread(target=promote)
    with Running(database.sink()) as running:
        promoting.start()
        running.send([1, "a"])
        promoting.join()
        assert running.acked == [1]
    assert "in a read-only transaction" in errors[0]
    assert database.rows() == [(1, "a")]


@pytest.mark.parametrize("name", ["ü" * 31, "€" * 17, "x" * 60])
def test_a_table_of_a_long_name_has_keys_of_its_own(postgres_url, name):
    database = Database(postgres_url)
    database.run(f'DROP TABLE IF EXISTS "{name}"')
    database.run(f'CREATE TABLE "{name}" (id bigint, name text)')
    for _ in range(2):
        with Running(DatabaseSink(postgres_url, name)) as running:
            running.send([1, "a"])
            assert running.acked == [1]
    assert database.run(f'SELECT * FROM "{name}"') == [(1, "a")]


def test_some_fields_go_into_columns_of_other_names(database):
    fields = "number long, word string, more string"
    settings = {"fields": {"number": "id", "word": "name"}}
    with Running(database.sink(**settings), fields) as running:
        running.send([1, "a", "x"])
    with Running(database.sink(fields=["id", "name"]), "name string, id long, n int") as running:
        running.send(["b", 2, 3])
    assert database.rows() == [(1, "a"), (2, "b")]


def test_a_stream_that_lacks_a_field_is_refused(database):
    feeder = FeederSpout(fields="id long, name string", streams={"other": "id long"})
    builder = TopologyBuilder("rows")
    builder.set_spout("in", feeder)
    out = builder.set_bolt("out", database.sink(fields=["id", "name"]))
    out.shuffle_grouping("in").shuffle_grouping("in", stream="other")
    with pytest.raises(TopologyError, match="uses field 'name', which is not on stream 'other'"):
        builder.build()


def test_values_of_all_types_come_back_from_their_columns(postgres_url):
    database = Database(postgres_url)
    database.run(f"DROP TABLE {database.table}")
    database.run(
        f"CREATE TABLE {database.table} (id bigint, f double precision, d numeric(10,2), b bytea, "
        "day date, at timestamptz, l integer[], yes boolean, t text)"
    )
    values = [
        1, 1.5, Decimal("2.25"), b"\xff\x00", date(2026, 1, 2), datetime(2026, 1, 2, 3, tzinfo=UTC),
        [1, 2], True, "ü\n'",
    ]  # fmt: skip
    fields = (
        "id long, f double, d decimal(10,2), b binary, day date, at timestamp, l array<int>, "
        "yes boolean, t string"
    )
    with Running(database.sink(), fields) as running:
        running.send(values)
        assert running.acked == [1], running.failed
    [found] = database.run(f"SELECT * FROM {database.table}")
    assert [bytes(one) if isinstance(one, memoryview) else one for one in found] == values


def test_a_table_that_lacks_a_column_or_is_not_there_fails_in_one_line(database):
    with Running(database.sink(), "id long, name string, colour string") as running:
        running.send([1, "a", "red"])
        assert "has no column 'colour'; its columns are id, name" in running.failed[1]
    with Running(DatabaseSink(database.url, "missing")) as running:
        running.send([1, "a"])
        assert "there is no table 'missing'" in running.failed[1]
        assert "\n" not in running.failed[1]
    database.without_a_primary_key()
    with Running(database.sink(mode="upsert")) as running:
        running.send([1, "a"])
        assert "has no primary key" in running.failed[1]


def test_a_password_among_the_options_of_an_address_is_in_no_error(postgres_url):
    url = make_url(postgres_url)
    assert url.password
    place = f"{url.host}:{url.port}/{url.database}"
    options = urlencode({"user": url.username, "password": url.password})
    with Running(DatabaseSink(f"postgresql://{place}?{options}", "missing")) as running:
        running.send([1, "a"])
        said = running.failed[1]
    assert f"there is no table 'missing' in postgresql+psycopg://{place}?" in said
    assert "password=***" in said
    assert url.password not in said


def test_a_table_that_is_made_later_is_found(database):
    database.run(f"DROP TABLE {database.table}")
    with Running(database.sink()) as running:
        running.send([1, "a"])
        database.run(f"CREATE TABLE {database.table} (id bigint PRIMARY KEY, name varchar(20))")
        running.send([1, "a"])
        database.run(f"ALTER TABLE {database.table} DROP COLUMN name")
        running.send([2, "b"])
        database.run(f"ALTER TABLE {database.table} ADD COLUMN name varchar(20)")
        running.send([2, "b"])
        assert running.acked == [1, 2]
        assert running.failed.keys() == {1, 2}
    assert database.rows() == [(1, None), (2, "b")]


def test_old_keys_are_forgotten(database, monkeypatch):
    monkeypatch.setattr(writer, "_LOOK_S", 0.0)
    with Running(database.sink(once_retention=timedelta(hours=1))) as running:
        running.send(*([n, "a"] for n in range(20)))
        assert database.number_of_keys() == 20
        database.run(f"UPDATE {database.keys} SET written_at = written_at - 3601")
        running.send([20, "b"], [1, "a"])
        running.send([21, "b"])
    assert database.number_of_keys() == 2


def test_a_key_is_remembered_from_its_own_write_on(database, monkeypatch):
    now = 0.0
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now))
    settings = WriterSettings(table=database.table, upsert=False, write=None, retention_s=60)
    with closing(writer.Writer(engine_of(database.url), settings)) as writing:

        def fate(number):
            values = {"id": number, "name": "x"}
            [outcome] = writing.write([Row(key=bytes([number]) * 16, said=Said(), values=values)])
            return outcome.fate

        assert fate(1) is Fate.WRITTEN
        now += 55
        assert fate(2) is Fate.WRITTEN
        now += 10
        database.run(
            f"UPDATE {database.keys} SET written_at = written_at - 65 WHERE length(key) = 0"
        )
        assert fate(3) is Fate.WRITTEN
        assert database.number_of_keys() == 2
        assert fate(2) is Fate.REPEATED


def test_keys_of_a_table_that_is_written_to_once_per_day_go_after_their_retention(
    database, monkeypatch
):
    now = 0.0
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now))
    day_s = 86_400
    settings = WriterSettings(table=database.table, upsert=False, write=None, retention_s=day_s)
    with closing(writer.Writer(engine_of(database.url), settings)) as writing:
        for day in range(1, 6):
            now += day_s
            if day > 1:
                database.run(
                    f"UPDATE {database.keys} SET written_at = written_at - {day_s} "
                    "WHERE length(key) = 0"
                )
            values = {"id": day, "name": "x"}
            writing.write([Row(key=bytes([day]) * 16, said=Said(), values=values)])
    assert database.number_of_keys() <= 2


def test_a_table_of_keys_that_a_version_before_made_keeps_its_keys(database):
    """The keys have 32 bits of a digest per row, and a process of that version may still write."""
    with Running(database.sink()) as running:
        running.send([1, "a"], identities=[Identity(b"1", content=7 << 100, short=7)])
        running.send([2, "b"], identities=[Identity(b"2", content=8 << 100, short=8)])
    old = "key, content, written_at"
    database.run(f"CREATE TABLE kept AS SELECT {old} FROM {database.keys}")
    database.run(f"DROP TABLE {database.keys}")
    blob = "bytea" if database.engine.dialect.name == "postgresql" else "blob"
    database.run(
        f"CREATE TABLE {database.keys} (key {blob} PRIMARY KEY, content bigint NOT NULL, "
        "written_at bigint NOT NULL)"
    )
    database.run(f"INSERT INTO {database.keys} ({old}) SELECT {old} FROM kept WHERE content <> 8")
    with Running(database.sink()) as running:
        same, other = (Identity(b"1", content=n << 100, short=n) for n in (7, 9))
        running.send([3, "a"], [4, "x"], identities=[same, other])
        # As the older version writes.
        database.run(
            f"INSERT INTO {database.keys} ({old}) SELECT {old} FROM kept WHERE content = 8"
        )
        same, other = (Identity(b"2", content=n << 100, short=n) for n in (8, 9))
        running.send([5, "b"], [6, "x"], identities=[same, other])
        assert running.acked == [3, 5]
        assert all("a different body was already written" in running.failed[one] for one in (4, 6))
        running.send([7, "c"], identities=["new"])
    database.run("DROP TABLE kept")
    assert [row[0] for row in database.rows()] == [1, 2, 7]


def test_equal_short_digests_do_not_make_two_messages_one(database):
    """A second body with the same 32 bits is found in a minute."""
    mallory = Identity(b"order-17", content=7 << 100, short=7)
    genuine = Identity(b"order-17", content=8 << 100, short=7)
    with Running(database.sink()) as running:
        running.send([1, "a"], identities=[mallory])
        running.send([2, "b"], identities=[genuine])
        assert running.acked == [1]
        assert "a different body was already written" in running.failed[2]


@pytest.mark.parametrize("years", [1, -1])
def test_a_database_whose_clock_jumps_forgets_nothing(database, monkeypatch, years):
    monkeypatch.setattr(writer, "_LOOK_S", 0.0)
    moved = f"UPDATE {database.keys} SET written_at = written_at - {years * 365 * 86_400}"
    database.without_a_primary_key()
    with Running(database.sink(once_retention=timedelta(hours=1))) as running:
        running.send(*([n, "a"] for n in range(20)))
        database.run(f"{moved} WHERE length(key) = 0")  # the time of the last check
        running.send([20, "b"])
        running.send(*([n, "a"] for n in range(20)))
    assert database.rows() == [*((n, "a") for n in range(20)), (20, "b")]


@pytest.fixture
def errors(monkeypatch):
    """Return all errors reported by bolts."""
    found = []
    monkeypatch.setattr(Record, "report", lambda _record, message: found.append(message) or True)
    return found


def test_many_old_keys_are_forgotten_write_by_write(database, monkeypatch):
    monkeypatch.setattr(writer, "_FORGOTTEN", 7)
    monkeypatch.setattr(writer, "_LOOK_S", 0.0)
    with Running(database.sink(once_retention=timedelta(hours=1))) as running:
        running.send(*([n, "a"] for n in range(20)))
        monkeypatch.setattr(writer, "_LOOK_S", 3600.0)
        database.run(f"UPDATE {database.keys} SET written_at = written_at - 3601")
        for n in range(20, 24):
            running.send([n, "b"])
    assert database.number_of_keys() == 4


def test_a_message_older_than_what_is_remembered_is_told(database, errors):
    old = int((datetime.now(UTC) - timedelta(days=30)).timestamp())
    with Running(database.sink()) as running:
        running.send([1, "a"], [2, "b"], identities=[Identity(b"1", since=old), "2"])
    assert any("older than the remembered keys" in one for one in errors)
    assert len(database.rows()) == 2


def test_many_tasks_with_the_same_messages_write_each_once(postgres_url):
    """Two tasks have the same message at once: the second waits for the first, and sees its row."""
    database = Database(postgres_url)
    database.without_a_primary_key()
    settings = WriterSettings(table=database.table, upsert=False, write=None, retention_s=3600)
    rows = [Row(key=bytes([n]) * 16, said=Said(), values={"id": n, "name": "x"}) for n in range(50)]
    outcomes = []

    def work(number):
        mine = writer.Writer(engine_of(postgres_url), settings)
        for start in range(0, 50, 10):
            some = rows[start:] + rows[:start]
            if number % 2:
                some = some[::-1]
            outcomes.extend(mine.write(some))
        mine.close()

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(database.rows()) == 50
    assert [one.fate.value for one in outcomes].count("written") == 50
    assert len(outcomes) == 1000


@contextmanager
def later(seconds, call):
    timer = threading.Timer(seconds, call)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_a_database_that_is_away_holds_its_task_until_it_is_back(postgres, errors):
    server = postgres()
    database = Database(server.url)
    with Running(database.sink()) as running:
        running.send([1, "a"])
        server.kill()
        with later(1.0, server.start):
            running.send([2, "b"], [3, "c"])
        assert running.acked == [1, 2, 3]
        assert any("waiting for the database" in one for one in errors)
        server.restart(keep_data=True)
        running.send([4, "d"], [2, "b"])
    assert database.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_a_database_that_stands_still_is_given_up_after_its_patience(postgres):
    server = postgres()
    database = Database(server.url)
    with Running(database.sink(patience_secs=2)) as running:
        running.send([1, "a"])
        server.pause()
        running.send([2, "b"])
        assert "the database was unavailable for 2 s" in running.failed[2]
        server.resume()
        running.send([2, "b"], [3, "c"])
        assert running.acked == [1, 2, 3]
    assert database.rows() == [(1, "a"), (2, "b"), (3, "c")]


@pytest.fixture(scope="module")
def lost():
    """Numbers of lost replies, by the number of replies that passed before."""
    found = []
    yield found
    assert len(found) < 8 or found[:3] == [1, 1, 1], "in the beginning of a commit at least"


@pytest.mark.parametrize("after", range(8))
def test_a_connection_that_is_lost_anywhere_in_a_commit_writes_each_row_once(
    postgres_url, after, lost
):
    """The keys tell whether the commit succeeded."""
    database = Database(postgres_url)
    database.without_a_primary_key()
    with Proxy(postgres_url) as proxy:
        sink = DatabaseSink(proxy.url, database.table, patience_secs=20)
        with Running(sink) as running:
            running.send([0, "first"])
            proxy.lose_next(after=after)
            running.send(*([n, f"name {n}"] for n in range(1, 30)))
            assert running.acked == list(range(30))
            lost.append(proxy.lost)
    assert database.rows() == [(0, "first")] + [(n, f"name {n}") for n in range(1, 30)]


def test_a_connection_that_falls_silent_amid_its_rows_holds_their_keys_no_longer(
    postgres_url, monkeypatch
):
    monkeypatch.setattr(database_sink, "_SILENCE_S", 6.0)
    database = Database(postgres_url)
    # Slow and large enough for the server to be still waiting for some of the rows.
    database.run(f"ALTER TABLE {database.table} ALTER COLUMN name TYPE text")
    database.run(
        f"CREATE FUNCTION {database.table}_slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$"
    )
    database.run(
        f"CREATE TRIGGER slow BEFORE INSERT ON {database.table} "
        f"FOR EACH ROW EXECUTE FUNCTION {database.table}_slow()"
    )
    long = "a" * 100_000
    proxy = Proxy(postgres_url)
    with proxy, Running(DatabaseSink(proxy.url, database.table, patience_secs=60)) as running:
        running.send([0, long])
        silent = threading.Timer(0.4, proxy.mute)
        silent.start()
        running.send(*([n, long] for n in range(1, 40)))
        silent.join()
        assert running.acked == list(range(40))
    assert database.rows() == [(n, long) for n in range(40)]


def test_a_server_that_ends_a_connection_amid_its_rows_is_told_in_one_line(postgres_url, errors):
    database = Database(postgres_url)
    # Unlike a row, a number drawn from a sequence is not rolled back.
    database.run(f"CREATE SEQUENCE {database.table}_n")
    database.run(
        f"CREATE FUNCTION {database.table}_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('{database.table}_n') = 10 THEN "
        "PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$"
    )
    database.run(
        f"CREATE TRIGGER ending BEFORE INSERT ON {database.table} "
        f"FOR EACH ROW EXECUTE FUNCTION {database.table}_end()"
    )
    with Running(database.sink()) as running:
        running.send(*([n, "a"] for n in range(200)))
        assert running.acked == list(range(200))
    assert database.rows() == [(n, "a") for n in range(200)]
    assert [one[:25] for one in errors] == ["waiting for the database:"]


def ends_amid_a_transaction(engine, database):
    """Return a connection to the pool after the server has ended it."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
        database.run(f"SELECT pg_terminate_backend({pid})")
        wait_until(lambda: not database.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
    finally:
        connection.close()
        engine.dispose()


def test_a_connection_that_ends_amid_a_transaction_leaves_no_traceback_in_the_log(
    postgres_url, caplog
):
    database = Database(postgres_url)
    ends_amid_a_transaction(engine_of(postgres_url), database)
    assert caplog.records == []
    # A user's own engine in the same process logs as usual.
    theirs = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    ends_amid_a_transaction(theirs, database)
    [record] = caplog.records
    assert record.exc_info


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": "no address"}, "not a database address"),
        ({"url": "postgresql://u:S3CRET"}, "not a database address"),
        ({"url": "postgresql://u:S3@CRET@h/d"}, "password percent-encoded"),
        ({"url": "mysql://u@h/d"}, "supports PostgreSQL and SQLite, not 'mysql'"),
        ({"url": "nosuch://u@h/d"}, "supports PostgreSQL and SQLite, not 'nosuch'"),
        ({"url": "postgresql+asyncpg://u@h/d"}, "psycopg, not 'asyncpg': .* as postgresql://…"),
        ({"url": "postgresql+psycopg2://u@h/d"}, "with the driver psycopg, not 'psycopg2'"),
        ({"url": "sqlite+aiosqlite:///x.db"}, "with the driver pysqlite, not 'aiosqlite'"),
        ({"table": ""}, "needs the name of a table"),
        ({"fields": "id"}, "takes a list of fields"),
        ({"fields": {"id": "id", "first": "name", "last": "name"}}, "has the column 'name' twice"),
        ({"mode": "delete"}, 'takes mode "insert" or "upsert"'),
        ({"mode": "upsert", "write": print}, 'takes mode "insert" or "upsert"'),
        ({"patience_secs": 0}, "needs a patience_secs greater than 0"),
        ({"patience_secs": "5"}, "needs a patience_secs greater than 0, not '5'"),
        ({"once_retention": 5}, "needs a timedelta as once_retention, not 5"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings, why):
    with pytest.raises(TopologyError, match=why) as refused:
        DatabaseSink(**{"url": "sqlite:///x.db", "table": "t", **settings})
    shown = "".join(traceback.format_exception(refused.value))
    assert "CRET" not in shown.replace(str(settings), "")


def pumped(sink, **config):
    """Return a pump that has fed one row to the sink with these settings."""
    builder = TopologyBuilder("rows")
    builder.set_spout("in", FeederSpout(fields="id long, name string"))
    builder.set_bolt("out", sink, config=config).shuffle_grouping("in")
    pump = Pump(builder.build())
    pump.feed([1, "a"])
    pump.run()
    for attempt in pump.attempts.values():
        attempt.close()
    return pump


def test_without_an_address_its_tuples_fail_and_say_what_to_do():
    [reason] = pumped(DatabaseSink(None, "t")).failed.values()
    assert 'set config={"database_url": …}' in reason


def test_the_address_may_be_a_setting_of_the_topology(database):
    assert len(pumped(DatabaseSink(None, database.table), database_url=database.url).acked) == 1
    assert database.rows() == [(1, "a")]


def test_a_password_is_in_no_error(postgres_url):
    wrong = postgres_url.replace("tiercel:", "tiercel:secret-", 1)
    with Running(DatabaseSink(wrong, "t", patience_secs=1)) as running:
        running.send([1, "a"])
        assert "secret-" not in running.failed[1]

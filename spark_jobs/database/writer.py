"""Writes each row exactly once: the rows of one step and their keys in one transaction.

A row whose key is in the table of keys was written by another delivery of its message, or by an
earlier transaction whose commit was not confirmed: it is skipped. So a process or a connection may
die at any point.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, NoSuchTableError, SQLAlchemyError
from sqlalchemy.sql import Delete, Select

from tiercel.acker.ids import Said
from tiercel.queues.nouns import kind_of
from tiercel.spark_jobs.database.engine import NAME, lacks, passes, words_of
from tiercel.spark_jobs.database.rows import (
    OTHER_MESSAGE,
    REPEATED,
    WRITTEN,
    DatabaseAwayError,
    Fate,
    Outcome,
    Row,
    TransactionEndedError,
    Write,
    WriterSettings,
)
from tiercel.spark_jobs.logs.formatters import redact

# Seconds since the epoch, and the larger and the smaller of two numbers.
_NOW = {
    "postgresql": "CAST(extract(epoch FROM now()) AS bigint)",
    "sqlite": "CAST(strftime('%s', 'now') AS integer)",
}
_GREATER: dict[str, Any] = {"postgresql": sa.func.greatest, "sqlite": sa.func.max}
_LESSER: dict[str, Any] = {"postgresql": sa.func.least, "sqlite": sa.func.min}
# Key of the row that is the clock of a table of keys. No real key is empty.
_CLOCK = b""
# Longest time that the clock advances per tick if the process was not running.
_LONGEST_S = 120
# Both dialects have the same methods for conflicts.
_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


def tick(kind: str, keys: sa.Table, awake_s: float) -> Any:
    """Advance the clock of a table of keys; returns the seconds that it has run.

    Each tick adds the time since the last one by the database's clock, at most two minutes or, if
    that is more, ``awake_s``, the time for which this process has run since its last tick. So keys
    do not age when the database's clock jumps or while the topology is stopped.
    """
    now = sa.text(_NOW[kind])
    since = sa.literal_column(_NOW[kind], sa.BigInteger) - keys.c.written_at
    passed = _GREATER[kind](0, _LESSER[kind](max(_LONGEST_S, int(awake_s)), since))
    statement = _INSERT[kind](keys).values(key=_CLOCK, content=0, written_at=now)
    return statement.on_conflict_do_update(
        index_elements=["key"], set_={"content": keys.c.content + passed, "written_at": now}
    ).returning(keys.c.content)


def end(sessions: Sequence[int]) -> Any:
    """End those PostgreSQL sessions that are still ours: the server reuses their numbers."""
    statement = sa.text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid = ANY(:sessions) AND application_name = :name AND usename = current_user"
    )
    return statement.bindparams(sessions=list(sessions), name=NAME)


def claim(kind: str, keys: sa.Table, some: Mapping[bytes, Said], ran_s: int) -> tuple[Any, Any]:
    """Build the statement, and its parameters, that inserts keys with their messages' digests and
    the clock's time ``ran_s``; it returns the new keys.

    It waits for transactions that insert the same keys: a key is there once they have committed.
    The keys are sorted, so that two transactions with the same keys cannot deadlock.
    """
    ordered = sorted(some.items())
    statement = _INSERT[kind](keys)
    if kind != "postgresql":
        rows = [
            {"key": key, "content": said.short, "digest": _digest(said), "written_at": ran_s}
            for key, said in ordered
        ]
        return statement.on_conflict_do_nothing().returning(keys.c.key), rows
    # Arrays take a third of the time of one row of values per key.
    arrays = (
        sa.func.unnest(
            sa.bindparam("keys", type_=postgresql.ARRAY(sa.LargeBinary)),
            sa.bindparam("contents", type_=postgresql.ARRAY(sa.BigInteger)),
            sa.bindparam("digests", type_=postgresql.ARRAY(sa.LargeBinary)),
        )
        .table_valued("key", "content", "digest", name="claimed")
        .render_derived()
    )
    found = sa.select(
        arrays.c.key, arrays.c.content, arrays.c.digest, sa.literal(ran_s, sa.BigInteger)
    )
    statement = statement.from_select(["key", "content", "digest", "written_at"], found)
    values = {
        "keys": [key for key, _ in ordered],
        "contents": [said.short for _, said in ordered],
        "digests": [_digest(said) for _, said in ordered],
    }
    return statement.on_conflict_do_nothing().returning(keys.c.key), values


def put(kind: str, table: sa.Table, columns: Sequence[str], updated_by: Sequence[str]) -> Any:
    """Insert rows; update an existing one if ``updated_by`` names its identifying columns."""
    statement = _INSERT[kind](table)
    if not updated_by:
        return statement
    changed = {column: statement.excluded[column] for column in columns if column not in updated_by}
    if not changed:
        return statement.on_conflict_do_nothing(index_elements=list(updated_by))
    return statement.on_conflict_do_update(index_elements=list(updated_by), set_=changed)


def known(keys: sa.Table, some: Sequence[bytes]) -> Select[Any]:
    """Read the digests stored with these keys, for ``said_then``."""
    return sa.select(keys.c.key, keys.c.content, keys.c.digest).where(keys.c.key.in_(some))


def said_then(short: int, digest: bytes | None) -> int:
    """Return the digest in a row of the table of keys, for ``Said.contradicts``."""
    return short if digest is None else int.from_bytes(digest)


def _digest(said: Said) -> bytes | None:
    return said.content.to_bytes(16) if said.content else None


def forget(keys: sa.Table, before_s: int, most: int) -> Delete:
    """Delete at most ``most`` keys that were written before the time ``before_s`` of the clock."""
    old = keys.c.written_at < before_s
    return sa.delete(keys).where(keys.c.key.in_(sa.select(keys.c.key).where(old).limit(most)))


_SUFFIX = "_tiercel_keys"
# PostgreSQL truncates names to this many bytes.
_LONGEST_NAME = 63
_TAKEN_IN_HAND = 0x7469657263656C  # number of our advisory lock
# Most keys deleted per cleanup, more than a step writes, and the time between two cleanups.
_FORGOTTEN = 10_000
_LOOK_S = 60.0


class Writer:
    """Writes rows and keys. For one thread, except ``abandon``."""

    def __init__(
        self, engine: sa.Engine, settings: WriterSettings, left: Sequence[int] = ()
    ) -> None:
        """``left`` are the sessions of an abandoned writer, which are ended first."""
        self._engine = engine
        self._settings = settings
        self._kind = engine.dialect.name
        self._keys: sa.Table | None = None
        # The insert statement for each set of columns.
        self._puts: dict[tuple[str, ...], Any] = {}
        # Clock of the table of keys: when to read it next, its last value, and when it was read.
        self._look_at = 0.0
        self._ran_s = 0
        self._looked_at = 0.0
        # SQLAlchemy forgets a connection that breaks while it is made.
        self._connections: list[Any] = []
        sa.event.listen(engine, "connect", self._connected, insert=True)
        self._abandoned = False
        self._left = list(left)

    def write(self, rows: Sequence[Row]) -> list[Outcome]:
        """Write the rows, and return the outcome of each once they are committed.

        Tuples with the same key are one row. If a row is refused, the others are still written.
        Raises TableError, TransactionEndedError, and DatabaseAwayError if the commit is unknown:
        then call it again with the same rows.
        """
        try:
            return self._write(rows)
        except DBAPIError as error:
            self._begin_anew()
            raise _away(error) from error
        except TableError:
            self._begin_anew()
            raise
        finally:
            if self._abandoned:
                self.close()

    def abandon(self) -> list[int]:
        """Close the writer when its current call ends, for which no caller waits any more.

        Returns its sessions at the server. They may still hold the keys of an open transaction: to
        the server a half-open connection looks like an idle client.
        """
        self._abandoned = True
        found = (getattr(connection, "info", None) for connection in list(self._connections))
        return [*self._left, *(info.backend_pid for info in found if info is not None)]

    def _write(self, rows: Sequence[Row]) -> list[Outcome]:
        first: dict[bytes, int] = {}
        alone = [
            at
            for at, row in enumerate(rows)
            if row.key is None or first.setdefault(row.key, at) == at
        ]
        self._end_what_was_left()
        self._look_at_tables({tuple(row.values) for row in rows} - self._puts.keys())
        self._look_at_clock()
        found = dict(zip(alone, self._written([rows[at] for at in alone]), strict=True))
        outcomes = []
        for at, row in enumerate(rows):
            before = at if row.key is None else first[row.key]
            outcome = found[before]
            outcomes.append(outcome if at == before else _same(row, rows[before], outcome))
        return outcomes

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._engine.dispose()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _connected(self, connection: Any, _record: Any) -> None:
        self._connections.append(connection)

    def _begin_anew(self) -> None:
        """Reconnect, and inspect the tables again, which may have changed."""
        self._puts.clear()
        self._keys = None
        self._look_at = 0.0
        self.close()

    def _end_what_was_left(self) -> None:
        if self._left:
            with self._engine.begin() as connection:
                connection.execute(end(self._left))
            self._left.clear()

    def _look_at_tables(self, unseen: Collection[tuple[str, ...]]) -> None:
        """Inspect the tables before the first rows with these columns."""
        if not unseen:
            return
        settings = self._settings
        wanted = () if settings.write else sorted({column for some in unseen for column in some})
        with self._engine.begin() as connection:
            table = user_table(connection, settings.table, wanted)
            updated_by = key_columns(table) if settings.upsert else ()
            if settings.retention_s is not None and self._keys is None:
                self._keys = keys_table(connection, table)
        for columns in unseen:
            self._puts[columns] = put(self._kind, table, columns, updated_by)

    def _written(self, rows: Sequence[Row]) -> list[Outcome]:
        try:
            with self._engine.begin() as connection:
                return self._all(connection, rows)
        except Exception as error:
            if not _is_about_a_row(error):
                raise
        with self._engine.begin() as connection:
            if self._kind == "postgresql":
                # Deferred constraints would fail at the commit, where no row can be named.
                connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
            return self._by_halves(connection, rows)

    def _by_halves(self, connection: sa.Connection, rows: Sequence[Row]) -> list[Outcome]:
        """Like ``_all``, without the rows that the database refuses."""
        try:
            with connection.begin_nested():
                return self._all(connection, rows)
        except Exception as error:
            if not _is_about_a_row(error):
                raise
            if len(rows) == 1:
                return [Outcome(Fate.REFUSED, _reason(error))]
        middle = len(rows) // 2
        return [
            *self._by_halves(connection, rows[:middle]),
            *self._by_halves(connection, rows[middle:]),
        ]

    def _all(self, connection: sa.Connection, rows: Sequence[Row]) -> list[Outcome]:
        outcomes = self._claimed(connection, rows)
        fresh = [row for row, one in zip(rows, outcomes, strict=True) if one is WRITTEN]
        if not fresh:
            return outcomes
        if self._settings.write is not None:
            _write_by(self._settings.write, connection, fresh)
        else:
            together: dict[tuple[str, ...], list[dict[str, Any]]] = {}
            for row in fresh:
                together.setdefault(tuple(row.values), []).append(dict(row.values))
            for columns, values in together.items():
                connection.execute(self._puts[columns], values)
        return outcomes

    def _claimed(self, connection: sa.Connection, rows: Sequence[Row]) -> list[Outcome]:
        """Insert the keys; a key that exists means that its row was written before."""
        keys = self._keys
        keyed = {row.key: row.said for row in rows if row.key is not None}
        if keys is None or not keyed:
            return [WRITTEN] * len(rows)
        # The clock's time now: a key with an earlier time would be forgotten early.
        ran_s = self._ran_s + int(time.monotonic() - self._looked_at)
        claimed = connection.execute(*claim(self._kind, keys, keyed, ran_s)).scalars()
        fresh = {bytes(key) for key in claimed}
        then: dict[bytes, int] = {}
        before = sorted(keyed.keys() - fresh)
        if before:
            found = connection.execute(known(keys, before))
            then = {bytes(key): said_then(short, digest) for key, short, digest in found}
        return [
            WRITTEN
            if row.key is None or row.key in fresh
            else _repeated(row.said, then.get(row.key, 0))
            for row in rows
        ]

    def _look_at_clock(self) -> None:
        """Advance the clock of the keys and delete old ones, once every ``_LOOK_S``."""
        keys = self._keys
        retention_s = self._settings.retention_s
        if keys is None or retention_s is None or time.monotonic() < self._look_at:
            return
        awake_s = time.monotonic() - self._looked_at if self._looked_at else 0.0
        with self._engine.begin() as connection:
            self._looked_at = time.monotonic()
            self._ran_s = connection.execute(tick(self._kind, keys, awake_s)).scalar_one()
            gone = connection.execute(forget(keys, self._ran_s - retention_s, _FORGOTTEN)).rowcount
        # A full cleanup means that there are more old keys: go on after the next write.
        self._look_at = 0.0 if gone >= _FORGOTTEN else time.monotonic() + _LOOK_S


def _same(row: Row, first: Row, outcome: Outcome) -> Outcome:
    """Return the outcome of a row with the same key as an earlier row."""
    if outcome.fate in {Fate.WRITTEN, Fate.REPEATED}:
        return _repeated(row.said, first.said.content)
    return outcome


def _repeated(said: Said, then: int) -> Outcome:
    return OTHER_MESSAGE if said.contradicts(then) else REPEATED


def _away(error: DBAPIError) -> Exception:
    """Translate an error that no row caused."""
    if passes(error):
        return DatabaseAwayError(words_of(error))
    return TableError(words_of(error))


def _write_by(write: Write, connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Call a user's function, and check that its writes can be committed."""
    transaction = connection.get_transaction()
    # Of a lambda around an async function, or a generator's: it has written nothing.
    given = write(connection, [row.item for row in rows])
    if isinstance(given, (Coroutine, Generator)):
        given.close()
        raise TypeError(
            f"the function of DatabaseSink(write=…) returned {kind_of(given)}, which never ran: "
            "write a plain function"
        )
    if transaction is None or not transaction.is_active:
        raise TransactionEndedError(
            "the function of DatabaseSink(write=…) has ended the transaction that it was given: "
            "it must neither commit nor roll back"
        )
    # If it swallowed an error of PostgreSQL's, all its writes are lost, and a commit would not
    # report that. This statement does.
    connection.execute(sa.select(1))


def _is_about_a_row(error: Exception) -> bool:
    """Return True for an error of one row. A user's function may raise anything for a row."""
    if isinstance(error, TransactionEndedError):
        return False
    return not (isinstance(error, DBAPIError) and (passes(error) or lacks(error)))


def _reason(error: Exception) -> str:
    if isinstance(error, DBAPIError):
        return f"the database refuses the row: {words_of(error)}"
    if isinstance(error, SQLAlchemyError):
        return f"the database cannot store the row: {' '.join(str(error).split())[:400]}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


class TableError(Exception):
    """The table lacks something that the topology needs; the message names it."""


def user_table(connection: sa.Connection, name: str, columns: Iterable[str]) -> sa.Table:
    """Return the table of this name, which may be ``schema.name``.

    Raises TableError if it does not exist or lacks one of the columns.
    """
    schema, _, plain = name.rpartition(".")
    # SQLAlchemy hides the password before the host, but not passwords in the options.
    where = redact(connection.engine.url.render_as_string(hide_password=True))
    try:
        table = sa.Table(plain, sa.MetaData(), schema=schema or None, autoload_with=connection)
    except NoSuchTableError as error:
        raise TableError(f"there is no table {name!r} in {where}: create it") from error
    for column in table.columns:
        if isinstance(column.type, sa.JSON):
            column.type.none_as_null = True  # else None is the null of JSON, which is a value
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise TableError(
            f"table {name!r} has no column {missing[0]!r}; its columns are "
            f"{', '.join(table.columns.keys())}: add it, or name the fields to be written"
        )
    return table


def key_columns(table: sa.Table) -> Sequence[str]:
    """Return the primary key, by which a row is updated; raises TableError if there is none."""
    names = [column.name for column in table.primary_key.columns]
    if not names:
        raise TableError(
            f"table {table.name!r} has no primary key to update rows by: add one, or use "
            'mode="insert"'
        )
    return names


def keys_table(connection: sa.Connection, table: sa.Table) -> sa.Table:
    """Return the table of keys next to ``table``; creates it if it is missing."""
    kind = connection.dialect.name
    name = f"{_cut(table.name, _LONGEST_NAME - len(_SUFFIX), kind)}{_SUFFIX}"
    keys = sa.Table(
        name,
        sa.MetaData(),
        sa.Column("key", sa.LargeBinary(16), primary_key=True),
        # The short digest of the body, and the full one; null in rows of an earlier version.
        sa.Column("content", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.LargeBinary(16)),
        # By the clock of this table, see ``tick``.
        sa.Column("written_at", sa.BigInteger, nullable=False),
        sa.Index(f"{_cut(name, _LONGEST_NAME - 3, kind)}_at", "written_at"),
        schema=table.schema,
    )
    if kind == "postgresql":
        # Two tasks that start together would both create it.
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _TAKEN_IN_HAND})
    there = sa.inspect(connection)
    if not there.has_table(name, schema=table.schema):
        keys.create(connection)
    elif "digest" not in {one["name"] for one in there.get_columns(name, schema=table.schema)}:
        _add_digest(connection, keys)
    return keys


def _add_digest(connection: sa.Connection, keys: sa.Table) -> None:
    """Add the column to an earlier version's table, whose rows stay valid."""
    preparer = connection.dialect.identifier_preparer
    type_ = keys.c.digest.type.compile(connection.dialect)
    statement = f"ALTER TABLE {preparer.format_table(keys)} ADD COLUMN digest {type_}"
    try:
        connection.execute(sa.text(statement))
    except DBAPIError as error:
        if passes(error):
            raise
        raise TableError(
            f"the table of keys {keys.name!r} was made by an older tiercel, and this user may not "
            f"change it ({words_of(error)}): have its owner run {statement}"
        ) from error


def _cut(name: str, most: int, kind: str) -> str:
    if kind == "postgresql":
        return name.encode()[:most].decode(errors="ignore")
    return name[:most]

"""The user's table, as the database has it, and the table of keys that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    LargeBinary,
    MetaData,
    Table,
    inspect,
    text,
)
from sqlalchemy.exc import DBAPIError, NoSuchTableError

from tiercel.spark_jobs.database.engine import passes, words_of
from tiercel.spark_jobs.logs.redaction import redact

_SUFFIX = "_tiercel_keys"
# PostgreSQL cuts longer names off: so many bytes.
_LONGEST_NAME = 63
_TAKEN_IN_HAND = 0x7469657263656C  # the number of our lock


class TableError(Exception):
    """The table is not as the topology needs it; the message says what it lacks."""


def user_table(connection: Connection, name: str, columns: Iterable[str]) -> Table:
    """Return the table of this name, ``schema.name`` too; raises TableError if it is not there, or
    lacks one of the columns.
    """
    schema, _, plain = name.rpartition(".")
    # SQLAlchemy hides the password before the host, and none among the options.
    where = redact(connection.engine.url.render_as_string(hide_password=True))
    try:
        table = Table(plain, MetaData(), schema=schema or None, autoload_with=connection)
    except NoSuchTableError as error:
        raise TableError(f"there is no table {name!r} in {where}: create it") from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise TableError(
            f"table {name!r} has no column {missing[0]!r}; its columns are "
            f"{', '.join(table.columns.keys())}: add it, or name the fields to be written"
        )
    return table


def key_columns(table: Table) -> Sequence[str]:
    """Return what a row is updated by: its primary key; raises TableError without one."""
    names = [column.name for column in table.primary_key.columns]
    if not names:
        raise TableError(
            f"table {table.name!r} has no primary key, by which a row could be updated: add one, "
            "or insert"
        )
    return names


def keys_table(connection: Connection, table: Table) -> Table:
    """Return the table of keys beside ``table``, made if it is missing."""
    kind = connection.dialect.name
    name = f"{_cut(table.name, _LONGEST_NAME - len(_SUFFIX), kind)}{_SUFFIX}"
    keys = Table(
        name,
        MetaData(),
        Column("key", LargeBinary(16), primary_key=True),
        # The short digest of the body, and the digest; null in rows of a version that had none.
        Column("content", BigInteger, nullable=False),
        Column("digest", LargeBinary(16)),
        # By the clock of this table, see ``statements.tick``.
        Column("written_at", BigInteger, nullable=False),
        Index(f"{_cut(name, _LONGEST_NAME - 3, kind)}_at", "written_at"),
        schema=table.schema,
    )
    if kind == "postgresql":
        # Two tasks that begin together would both make it.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _TAKEN_IN_HAND})
    there = inspect(connection)
    if not there.has_table(name, schema=table.schema):
        keys.create(connection)
    elif "digest" not in {one["name"] for one in there.get_columns(name, schema=table.schema)}:
        _add_digest(connection, keys)
    return keys


def _add_digest(connection: Connection, keys: Table) -> None:
    """Add the column to a table of a version before, whose rows stay valid."""
    preparer = connection.dialect.identifier_preparer
    type_ = keys.c.digest.type.compile(connection.dialect)
    statement = f"ALTER TABLE {preparer.format_table(keys)} ADD COLUMN digest {type_}"
    try:
        connection.execute(text(statement))
    except DBAPIError as error:
        if passes(error):
            raise
        raise TableError(
            f"the table of keys {keys.name!r} is of an older tiercel, and this user may not change "
            f"it ({words_of(error)}): have its owner run {statement}"
        ) from error


def _cut(name: str, most: int, kind: str) -> str:
    if kind == "postgresql":
        return name.encode()[:most].decode(errors="ignore")
    return name[:most]

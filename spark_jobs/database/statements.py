"""Statements, in the words of the databases that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    LargeBinary,
    Table,
    bindparam,
    delete,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Delete, Select

from tiercel.acker.keys import Said
from tiercel.spark_jobs.database.engine import NAME

# Seconds since the epoch, and the greater and the lesser of two numbers.
_NOW = {
    "postgresql": "CAST(extract(epoch FROM now()) AS bigint)",
    "sqlite": "CAST(strftime('%s', 'now') AS integer)",
}
_GREATER: dict[str, Any] = {"postgresql": func.greatest, "sqlite": func.max}
_LESSER: dict[str, Any] = {"postgresql": func.least, "sqlite": func.min}
# The row of a table of keys that is its clock: no key is as short.
_CLOCK = b""
# Longest time that the clock runs from one tick to the next, where the process was not there.
_LONGEST_S = 120
# Both have the same methods for conflicts.
_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


def tick(kind: str, keys: Table, awake_s: float) -> Any:
    """Let the clock of a table of keys run on; returns the seconds that it has run.

    Those between ticks, by the database's clock, and each time two minutes at most or, if that is
    more, ``awake_s``, for which this process has been there since its last tick: a clock that
    jumps makes no key older, nor does a topology that is stopped.
    """
    now = text(_NOW[kind])
    since = literal_column(_NOW[kind], BigInteger) - keys.c.written_at
    passed = _GREATER[kind](0, _LESSER[kind](max(_LONGEST_S, int(awake_s)), since))
    statement = _INSERT[kind](keys).values(key=_CLOCK, content=0, written_at=now)
    return statement.on_conflict_do_update(
        index_elements=["key"], set_={"content": keys.c.content + passed, "written_at": now}
    ).returning(keys.c.content)


def end(sessions: Sequence[int]) -> Any:
    """End sessions of this user, of PostgreSQL, that are ours: their numbers are given out anew."""
    statement = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid = ANY(:sessions) AND application_name = :name AND usename = current_user"
    )
    return statement.bindparams(sessions=list(sessions), name=NAME)


def claim(kind: str, keys: Table, some: Mapping[bytes, Said], ran_s: int) -> tuple[Any, Any]:
    """Insert keys, each with what its message says, when the clock of their table has run so long;
    returns the keys that were not there.

    Waits for transactions that insert one too: it is there if theirs is committed. In order, so
    that two transactions with the same keys wait for each other one way only. A statement, and what
    it is executed with.
    """
    ordered = sorted(some.items())
    statement = _INSERT[kind](keys)
    if kind != "postgresql":
        rows = [
            {"key": key, "content": said.short, "digest": _digest(said), "written_at": ran_s}
            for key, said in ordered
        ]
        return statement.on_conflict_do_nothing().returning(keys.c.key), rows
    # As arrays: a third of the time that a row of values for each takes.
    arrays = (
        func.unnest(
            bindparam("keys", type_=postgresql.ARRAY(LargeBinary)),
            bindparam("contents", type_=postgresql.ARRAY(BigInteger)),
            bindparam("digests", type_=postgresql.ARRAY(LargeBinary)),
        )
        .table_valued("key", "content", "digest", name="claimed")
        .render_derived()
    )
    found = select(arrays.c.key, arrays.c.content, arrays.c.digest, literal(ran_s, BigInteger))
    statement = statement.from_select(["key", "content", "digest", "written_at"], found)
    values = {
        "keys": [key for key, _ in ordered],
        "contents": [said.short for _, said in ordered],
        "digests": [_digest(said) for _, said in ordered],
    }
    return statement.on_conflict_do_nothing().returning(keys.c.key), values


def put(kind: str, table: Table, columns: Sequence[str], updated_by: Sequence[str]) -> Any:
    """Insert rows; one that is there is updated, if ``updated_by`` names the columns that tell."""
    statement = _INSERT[kind](table)
    if not updated_by:
        return statement
    changed = {column: statement.excluded[column] for column in columns if column not in updated_by}
    if not changed:
        return statement.on_conflict_do_nothing(index_elements=list(updated_by))
    return statement.on_conflict_do_update(index_elements=list(updated_by), set_=changed)


def known(keys: Table, some: Sequence[bytes]) -> Select[Any]:
    """Read what the messages said whose keys are there: for ``said_then``."""
    return select(keys.c.key, keys.c.content, keys.c.digest).where(keys.c.key.in_(some))


def said_then(short: int, digest: bytes | None) -> int:
    """Return what a row of the table of keys says of its message, for ``Said.contradicts``."""
    return short if digest is None else int.from_bytes(digest)


def _digest(said: Said) -> bytes | None:
    return said.content.to_bytes(16) if said.content else None


def forget(keys: Table, before_s: int, most: int) -> Delete:
    """Delete keys that were written before the clock of their table had run so long, ``most`` at
    most.
    """
    old = keys.c.written_at < before_s
    return delete(keys).where(keys.c.key.in_(select(keys.c.key).where(old).limit(most)))

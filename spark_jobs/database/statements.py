"""Statements, in the words of the databases that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, LargeBinary, Table, bindparam, delete, func, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Delete, Select

# Seconds since the epoch.
NOW = {
    "postgresql": "(CAST(extract(epoch FROM now()) AS bigint))",
    "sqlite": "(CAST(strftime('%s', 'now') AS integer))",
}
# Both have the same methods for conflicts.
_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


def claim(kind: str, keys: Table, some: Mapping[bytes, int]) -> tuple[Any, Any]:
    """Insert keys, each with what its message says; returns those that were not there.

    Waits for transactions that insert one too: it is there if theirs is committed. In order, so
    that two transactions with the same keys wait for each other one way only. A statement, and what
    it is executed with.
    """
    ordered = sorted(some.items())
    statement = _INSERT[kind](keys)
    if kind != "postgresql":
        rows = [{"key": key, "content": content} for key, content in ordered]
        return statement.on_conflict_do_nothing().returning(keys.c.key), rows
    # As two arrays: a third of the time that a row of values for each takes.
    arrays = (
        func.unnest(
            bindparam("keys", type_=postgresql.ARRAY(LargeBinary)),
            bindparam("contents", type_=postgresql.ARRAY(BigInteger)),
        )
        .table_valued("key", "content", name="claimed")
        .render_derived()
    )
    found = select(arrays.c.key, arrays.c.content)
    statement = statement.from_select(["key", "content"], found)
    values = {"keys": [key for key, _ in ordered], "contents": [one for _, one in ordered]}
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
    """Read what the messages said whose keys are there."""
    return select(keys.c.key, keys.c.content).where(keys.c.key.in_(some))


def forget(kind: str, keys: Table, retention_s: int, most: int) -> Delete:
    """Delete old keys, ``most`` at most."""
    old = keys.c.written_at < text(f"{NOW[kind]} - {int(retention_s)}")
    return delete(keys).where(keys.c.key.in_(select(keys.c.key).where(old).limit(most)))

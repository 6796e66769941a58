"""Rows to write, and the outcome of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tiercel.acker.ids import Said

# A user's function, which writes some rows in the open SQLAlchemy transaction.
Write = Callable[[Any, Sequence[Any]], object]


class DatabaseAwayError(Exception):
    """The database does not answer, or another transaction holds a lock: try again."""


class TransactionEndedError(Exception):
    """A user's function has committed or rolled back: the writes may be lost."""


class Fate(Enum):
    """Fate of a row."""

    WRITTEN = "written"
    # The row was written before, by another delivery of its message.
    REPEATED = "repeated"
    # Another message, with other content, was written with the same key.
    OTHER_MESSAGE = "other message"
    # The database refuses the row.
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterSettings:
    """Table of a writer, and how it writes."""

    table: str
    # Update existing rows.
    upsert: bool
    # The user's function that writes; None: the writer inserts and updates.
    write: Write | None
    # None: keys are ignored.
    retention_s: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row."""

    # 16 bytes; None: the row is written at each delivery.
    key: bytes | None
    # The message's digests, which tell it from another message with the same key.
    said: Said
    # Column to value.
    values: Mapping[str, Any]
    # An object of the caller's, passed to the user's function.
    item: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Fate of one row, with the database's message as the reason."""

    fate: Fate
    reason: str = ""


WRITTEN = Outcome(Fate.WRITTEN)
REPEATED = Outcome(Fate.REPEATED)
OTHER_MESSAGE = Outcome(
    Fate.OTHER_MESSAGE,
    "a message with the same identity but a different body was already written: give each message "
    "its own identity",
)

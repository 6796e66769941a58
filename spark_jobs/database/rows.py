"""Rows to write, and their fates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tiercel.acker.ids import Said

# A user's function: writes what belongs to some rows, in the open transaction (SQLAlchemy's).
Write = Callable[[Any, Sequence[Any]], None]


class DatabaseAwayError(Exception):
    """The database does not answer, or another transaction is in the way: try again."""


class TransactionEndedError(Exception):
    """A user's function has committed or rolled back: nothing is known to be written."""


class Fate(Enum):
    """Fate of a row."""

    WRITTEN = "written"
    # The row was written before, by another delivery of its message.
    REPEATED = "repeated"
    # Its key belongs to another message, which says something else.
    OTHER_MESSAGE = "other message"
    # The database refuses the row.
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterSettings:
    """Settings: the columns and the table they are written to."""

    table: str
    # Update rows that are there.
    upsert: bool
    # In place of inserting and updating; None: that is done here.
    write: Write | None
    # None: keys are not looked at.
    retention_s: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row."""

    # 16 bytes; None: it is written whenever it comes.
    key: bytes | None
    # What its message says, to tell it from another one with the same key.
    said: Said
    # Column to value.
    values: Mapping[str, Any]
    # Anything of the caller's: a user's function is given it.
    item: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Fate of one row, and the reason in the database's words."""

    fate: Fate
    reason: str = ""


WRITTEN = Outcome(Fate.WRITTEN)
REPEATED = Outcome(Fate.REPEATED)
OTHER_MESSAGE = Outcome(
    Fate.OTHER_MESSAGE,
    "another message with the same identity, which says something else, was written before: give "
    "each message an identity of its own",
)

"""Rows to write, and the outcome of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tiercel.acker.ids import Said

# A user's function that writes some rows in the open transaction (a SQLAlchemy connection).
Write = Callable[[Any, Sequence[Any]], None]


class DatabaseAwayError(Exception):
    """The database does not answer, or another transaction blocks this one: try again."""


class TransactionEndedError(Exception):
    """A user's function has committed or rolled back: what was written is not known."""


class Fate(Enum):
    """Fate of a row."""

    WRITTEN = "written"
    # The row was written before, by another delivery of its message.
    REPEATED = "repeated"
    # Another message with other content has the same key.
    OTHER_MESSAGE = "other message"
    # The database refuses the row.
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterSettings:
    """Settings of a writer."""

    table: str
    # Update rows that exist already.
    upsert: bool
    # Replaces inserting and updating; None: the writer inserts and updates.
    write: Write | None
    # How long keys are kept; None: rows are written without looking at keys.
    retention_s: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row."""

    # 16 bytes; None: the row is written at each delivery.
    key: bytes | None
    # Content of its message, to detect another message with the same key.
    said: Said
    # Column to value.
    values: Mapping[str, Any]
    # Passed to a user's function as it is.
    item: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Fate of one row, and the database's message if it refused the row."""

    fate: Fate
    reason: str = ""


WRITTEN = Outcome(Fate.WRITTEN)
REPEATED = Outcome(Fate.REPEATED)
OTHER_MESSAGE = Outcome(
    Fate.OTHER_MESSAGE,
    "another message with the same identity, which says something else, was written before: give "
    "each message an identity of its own",
)

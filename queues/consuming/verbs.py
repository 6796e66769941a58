"""Words for the end of an open message."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from tiercel.queues.consuming.copies import CopyFate


class Verb(Enum):
    """Said of a message by its reader."""

    ACK = auto()
    FAIL = auto()
    RELEASE = auto()
    DEAD_LETTER = auto()


class Later(NamedTuple):
    """A bolt's wish for a message that failed: to have it again after so many seconds."""

    seconds: float
    reason: str
    blame: bool


# As its reader says, or as became of its copy.
How = Verb | Later | CopyFate

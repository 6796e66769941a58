"""One run from its start to its end: keep the lease, see that every bolt task is attended, notice the end."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from queues.inbox.records import InboxFigures

log = logging.getLogger(__name__)

START_S = 60.0
"""How long the Spark tasks of a run may take until each bolt task has been seen."""
UNATTENDED_S = 10.0
"""How long a bolt task that was seen may then be without a process: Spark restarts one in two seconds."""


class Ended(enum.Enum):
    """Why a run ended."""

    STOPPED = "stopped"
    FAILED = "failed"
    """Its Spark job ended by itself."""
    LOST = "lost"
    """Another driver or run has the topology, or Redis lost its memory."""
    UNATTENDED = "unattended"
    """Bolt tasks had no process: too few slots, or executors that are gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attendance:
    """Which bolt tasks nothing attends. Pure."""

    never: tuple[int, ...]
    lost: tuple[int, ...]

    @classmethod
    def of(cls, figures: Mapping[int, InboxFigures]) -> Attendance:
        """Of all bolt tasks of the run."""
        never = tuple(task for task, one in figures.items() if one.seen_s is None)
        lost = tuple(task for task, one in figures.items() if one.seen_s is not None and one.seen_s > UNATTENDED_S)
        return cls(never=never, lost=lost)

    def missing(self, age_s: float) -> tuple[int, ...]:
        """The tasks that should be attended by now, in a run that began so long ago."""
        return (*self.lost, *(self.never if age_s > START_S else ()))

"""The seats of spout tasks: which worker runs each one, and its report about the task."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from tiercel.spark_jobs.whereabouts import Whereabouts, unpacked
from tiercel.workers.control.contract import Unreadable
from tiercel.workers.control.presence import Attendant, Presences, Seat

LASTS = timedelta(seconds=10)
_STRANGE = (ValueError, TypeError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """Report of a spout task about itself."""

    active: bool
    # Tuples in flight, tracked ones.
    pending: int
    # Age of the oldest of them; 0 if there is none.
    oldest_s: float = 0.0
    # Failed messages that the spout holds until their back-off is over.
    in_back_off: int = 0
    # Where its worker runs, added by ``SpoutSeats``; None: not reported.
    whereabouts: Whereabouts | None = None


NEW = Presence(active=False, pending=0)


class SpoutSeats:
    """The spout seats of one topology. Calls are as ``Presences`` says; each worker draws its name.

    While Redis is away or has lost its memory, two workers may believe for a moment that they have
    the same task. The worker that opened the outcome feed later hears of all its messages. The
    earlier worker may miss outcomes, which the later one has read and deleted: these messages time
    out and are delivered again. No message is acked wrongly, because roots are unique.
    """

    def __init__(self, presences: Presences, whereabouts: Whereabouts | None = None) -> None:
        """``whereabouts`` says where the worker runs that takes seats."""
        self._presences = presences
        self._place = [whereabouts.packed()] if whereabouts else []
        self._unreadable = Unreadable("run all parts of the topology with one version of tiercel")

    def take(self, worker: str, task_ids: Iterable[int]) -> int | None:
        """Take the first free task and return it; None if each has a worker.

        One round trip per task.
        """
        return next((task for task in task_ids if self.report(worker, task, NEW)), None)

    def report(
        self, worker: str, task_id: int, presence: Presence, *, by_force: bool = False
    ) -> bool:
        """Report a task, which renews its seat; False if another worker has it.

        Call it every second. ``by_force``: the operator has given the task to this worker.
        """
        oldest_s = round(presence.oldest_s, 3)
        figures = [presence.active, presence.pending, oldest_s, presence.in_back_off]
        said = json.dumps([*figures, *self._place])
        return self._presences.take(_seat(task_id), Attendant(worker, said), by_force=by_force)

    def leave(self, worker: str, task_id: int) -> None:
        """Give up the task. Idempotent; leaves another worker's seat alone."""
        self._presences.leave(_seat(task_id), worker)

    def present(self, task_ids: range) -> dict[int, Presence]:
        """Return the reports of the tasks that have a worker."""
        there = {}
        seats = [_seat(task_id) for task_id in task_ids]
        for task_id, found in zip(task_ids, self._presences.look(seats), strict=True):
            if found is None:
                continue
            try:
                there[task_id] = _presence(found.note)
            except _STRANGE as error:
                self._unreadable.pass_over(
                    f"the presence of spout task {task_id}", found.note.encode(), error
                )
        return there

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._presences.close()


def _seat(task_id: int) -> Seat:
    return Seat(f"spout-task-{task_id}", LASTS)


def _presence(said: str) -> Presence:
    """Read a report. Raises one of ``_STRANGE`` if ``report`` of this version did not write it."""
    active, pending, oldest_s, in_back_off, *more = json.loads(said)
    counts = isinstance(pending, int) and isinstance(in_back_off, int)
    if not isinstance(active, bool) or not counts or not math.isfinite(oldest_s):
        raise TypeError("not what a spout task says of itself")
    return Presence(
        active=active,
        pending=pending,
        oldest_s=oldest_s,
        in_back_off=in_back_off,
        whereabouts=unpacked(str(more[0])) if more else None,
    )

"""Ids of lines, and the checks and errors that both backends share. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import cache

from tiercel.acker.inbox.contract import LARGEST
from tiercel.acker.inbox.records import Parcel, Sender, StaleAttemptError, StepOrderError

# An id of a line is above all task ids: a mark, the number of its bolt's tasks, the lowest of them.
# Each server has a part of a line (``part_of_line``), and beside it the tuples that were returned.
_BITS = 24
_TASK = (1 << _BITS) - 1
_LINE = 1 << 2 * _BITS
_RETURNED = _LINE << 1
# Bounds on the entries of one inbox that one ``drain`` returns: tuples, and bytes of payload.
DRAINED_TUPLES = 10_000
DRAINED_BYTES = 4 * 1024 * 1024


def check_append(number: int, parcels: Sequence[Parcel]) -> None:
    """Raise ValueError for a call that breaks the contract."""
    if not 0 < number <= LARGEST:
        raise ValueError(f"number {number} of an append is not between 1 and {LARGEST}")
    if len({parcel.target for parcel in parcels}) != len(parcels):
        raise ValueError("one append has two parcels for one inbox")
    for parcel in parcels:
        if not parcel.chunks or len(parcel.chunks) != len(parcel.tuples):
            counts = f"{len(parcel.chunks)} chunks with {len(parcel.tuples)} counts of tuples"
            raise ValueError(f"a parcel for the inbox of task {parcel.target} has {counts}")


def drawn_sender(number: int) -> Sender:
    """Make a sender of a drawn number of at most 31 bits.

    It gets random bits too, in case a failover of Redis loses the last draw: inboxes would take the
    appends of two processes with one number for repeats.
    """
    return Sender(task=-(number << 22 | secrets.randbits(22)), attempt=1)


def is_drawn(sender: Sender) -> bool:
    """Return True for a spout worker, False for a bolt task."""
    return sender.task < -1


def line_of(tasks: Sequence[int]) -> int:
    """Return the id of the line that these tasks of one bolt take from: ids in a row."""
    return _LINE | len(tasks) << _BITS | tasks[0]


@cache
def is_line(target: int) -> bool:
    """Return True for a line, False for the inbox of a task."""
    return target >= _LINE


def tasks_of(line: int) -> range:
    """Return the tasks that take from a line."""
    return range(line & _TASK, (line & _TASK) + (line >> _BITS & _TASK))


def part_of_line(lowest: int) -> int:
    """Return the id of the part of a line that lies on one server, by the lowest of its tasks."""
    return _LINE | lowest


def returned_to(part: int) -> int:
    """Return the id of the inbox that holds tuples returned to a part: it goes before the part."""
    return part ^ _LINE ^ _RETURNED


def task_of(target: int) -> int:
    """Return the task of an inbox, or the lowest one of a line."""
    return target & _TASK if is_line(target) else target


def belongs_to(target: int, line: int) -> bool:
    """Return True for a part of this line, and for the tuples returned to it."""
    return is_line(target) and task_of(target) in tasks_of(line)


def name_of(target: int) -> str:
    """Return the name of an inbox for people."""
    return f"{'the line of task' if is_line(target) else 'task'} {task_of(target)}"


def stale(task: int) -> StaleAttemptError:
    """Return the error for a caller that another attempt or run has replaced at a task."""
    return StaleAttemptError(
        f"{name_of(task)} belongs to a newer attempt or another run; this one ends"
    )


def number_of_run(run: str) -> int:
    """Return the number that a run's name begins with, 0 if it begins with none.

    >>> number_of_run("17-ended"), number_of_run("run")
    (17, 0)
    """
    digits = re.match(r"[0-9]+", run)
    return int(digits[0]) if digits else 0


def superseded(run: str) -> StaleAttemptError:
    """Return the error for a run that comes after one with a higher number."""
    return StaleAttemptError(f"run {run} is over: a later one has the inboxes")


def unfinished(step: int) -> StepOrderError:
    """Return the error for a seal that would overwrite another one."""
    return StepOrderError(f"cannot seal step {step}: another step is sealed and not finished")


def unsealed(step: int) -> StepOrderError:
    """Return the error for finishing a step that is not sealed."""
    return StepOrderError(f"cannot finish step {step}: it was never sealed")

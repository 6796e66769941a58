"""Rules that both kinds of inboxes keep in the same way. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from tiercel.queues.inbox.contract import LARGEST
from tiercel.queues.inbox.records import Parcel, Sender, StaleAttemptError, StepOrderError

# Bounds on what one look of ``drain`` brings of one inbox: tuples, and bytes of payload.
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
    """Return the sender with a number that was drawn, of at most 31 bits.

    With some random bits, should a failover of Redis lose the last draw: two processes that are one
    sender would take each other's appends for repeats.
    """
    return Sender(task=-(number << 22 | secrets.randbits(22)), attempt=1)


def stale(task: int) -> StaleAttemptError:
    """Return the error for a caller that another attempt or run has replaced at a task."""
    return StaleAttemptError(
        f"task {task} belongs to a newer attempt or another run; this one ends"
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
    """Return the error for a seal that would forget another one."""
    return StepOrderError(f"cannot seal step {step}: another step is sealed and not finished")


def unsealed(step: int) -> StepOrderError:
    """Return the error for a finish of nothing."""
    return StepOrderError(f"cannot finish step {step}: it was never sealed")

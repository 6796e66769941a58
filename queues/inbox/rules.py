"""Rules that both kinds of inboxes keep in the same way. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from queues.inbox.contract import LARGEST, Parcel, StaleAttemptError

# Bounds on what one look of ``drain`` brings of one inbox: tuples, and bytes of payload.
DRAINED_TUPLES = 10_000
DRAINED_BYTES = 4 * 1024 * 1024


def check_append(number: int, parcels: Sequence[Parcel]) -> None:
    """Raise ValueError for a call that breaks the contract."""
    if not 0 < number <= LARGEST:
        raise ValueError(f"number {number} of an append is not between 1 and {LARGEST}")
    if len({parcel.target for parcel in parcels}) != len(parcels):
        raise ValueError("one append has two parcels for one inbox")


def stale(task: int) -> StaleAttemptError:
    """Return the error for a caller that another attempt or run has replaced at a task."""
    return StaleAttemptError(f"task {task} belongs to a newer attempt or another run; this one ends")


def unfinished(step: int) -> ValueError:
    """Return the error for a seal that would forget another one."""
    return ValueError(f"cannot seal step {step}: another step is sealed and not finished")


def unsealed(step: int) -> ValueError:
    """Return the error for a finish of nothing."""
    return ValueError(f"cannot finish step {step}: it was never sealed")

"""The orders that a bolt may give with a failure: never again, or not before a time.

Both travel in one way: an order that is raised, or given to ``fail``, is kept in the step's record,
goes to the ledger with the failure of the tuple, and to the spout with that of the message.
"""

from __future__ import annotations

from tiercel.spark_jobs.bolts.reject import Reject
from tiercel.spark_jobs.bolts.retry_later import RetryLater
from tiercel.spark_jobs.reasons import reason_given

Verdict = Reject | RetryLater
# The reason of a failure, and the order that goes with it.
Failing = tuple[str, Verdict | None]


def verdict_of(error: object, where: str = "") -> Verdict | None:
    """Return the exception or reason, if it is an order of the bolt's.

    ``where`` is the method that raised it, if that was not ``execute``: ``flush`` has no tuple to
    reject, and ``prepare`` no tuple at all.
    """
    if isinstance(error, RetryLater):
        return None if where == "prepare" else error
    return error if isinstance(error, Reject) and not where else None


def failing_for(reason: BaseException | str) -> Failing:
    """Return the failure of a tuple that the bolt fails with this reason, which may be empty."""
    text = reason_given(reason) if reason else ""
    return text or "failed by the bolt", verdict_of(reason)

"""The orders that a bolt may give with a failure: never again (``Reject``), or not before a time
(``RetryLater``).

Both travel in one way: an order that is raised, or given to ``fail``, is kept in the step's record,
goes to the ledger with the failure of the tuple, and to the spout with that of the message.
"""

from __future__ import annotations

import math

from tiercel.spark_jobs.reasons import reason_given


class Reject(Exception):  # noqa: N818 - reads as an order: raise Reject("the customer is unknown")
    """Raised by a bolt: its tuple can never be processed, and retrying does not help.

    The message at the tuple's root (or those at all its roots) fails, with this as its reason, and
    goes to the dead-letter queue at once, after its first delivery.

    It can also be passed as a reason: ``collector.fail(tup, Reject("…"))``. An ``ArrowBolt``, or a
    ``BatchBolt`` with ``on_error = "split"``, that raises it is called again with halves, down to
    the tuple that it is for. Raised by ``flush`` or ``prepare``, which have no tuple, or by any
    other ``BatchBolt``, it is an exception like any other: use ``collector.fail`` there.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


# A queue of RabbitMQ keeps a message for 49 days at most.
LONGEST_S = 30 * 24 * 3600.0


class RetryLater(Exception):  # noqa: N818 - reads as an order: raise RetryLater(60, "the API is busy")
    """Raised by a bolt: its tuple cannot be processed now; retry it after ``seconds``.

    The message at the tuple's root fails, with this as its reason, and is delivered again after
    that time and not before; meanwhile it lies at the broker, and neither a worker nor a bolt holds
    it. ``blame=False`` says that it is not the message's fault: the failure does not count towards
    the delivery limit of its queue, and the message may come back in this way for ever.

    It can also be passed as a reason: ``collector.fail(tup, RetryLater(60))``. Raised by an
    ``ArrowBolt`` or a ``BatchBolt`` it is for the whole batch, by ``flush`` for all input of the
    step.

    Raises ValueError for seconds that are no number from 0 to 30 days.
    """

    def __init__(self, seconds: float, reason: str = "", *, blame: bool = True) -> None:
        if (
            not isinstance(seconds, (int, float))
            or isinstance(seconds, bool)
            or not math.isfinite(seconds)
            or not 0 <= seconds <= LONGEST_S
        ):
            raise ValueError(
                f"RetryLater takes a number of seconds from 0 to {LONGEST_S:.0f} (30 days), "
                f"not {seconds!r:.60}"
            )
        super().__init__(seconds, reason)
        self.seconds = float(seconds)
        self.reason = reason
        self.blame = blame

    def __str__(self) -> str:
        when = f"again after {self.seconds:g} s"
        return f"{when}: {self.reason}" if self.reason else when

    def __reduce__(self) -> tuple[type[RetryLater], tuple[float, str], dict[str, bool]]:
        return type(self), (self.seconds, self.reason), {"blame": self.blame}


Verdict = Reject | RetryLater
# The reason for a failure, and its order.
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

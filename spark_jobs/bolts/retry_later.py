"""The way for a bolt to say when a message is to come again."""

from __future__ import annotations

import math

# A queue of RabbitMQ keeps a message for 49 days at most.
LONGEST_S = 30 * 24 * 3600.0


class RetryLater(Exception):  # noqa: N818 - reads as an order: raise RetryLater(60, "the API is busy")
    """Raised by a bolt: its tuple cannot be processed now, and is to come again after ``seconds``.

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

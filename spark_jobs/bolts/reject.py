"""The way for a bolt to say that a message can never be processed."""

from __future__ import annotations


class Reject(Exception):  # noqa: N818 - reads as an order: raise Reject("the customer is unknown")
    """Raised by a bolt: its tuple can never be processed, and trying again is of no use.

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

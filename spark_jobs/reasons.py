"""Reasons of failures, in one readable line, for anything that a bolt raised or gave. Pure."""

from __future__ import annotations

from asyncio import CancelledError

from tiercel.acker.ledger import REASON_LENGTH
from tiercel.spark_jobs.places import place_of

# Exceptions that end a bolt's call and not the Spark task: also ``sys.exit`` in some library, which
# is only an error here.
RAISED = (Exception, SystemExit, CancelledError)


def reason_of(error: object) -> str:
    """``ValueError: the first line`` of an exception.

    Of anything else its text's first line, which may be empty.
    """
    try:
        text = one_line(str(error))
    except RAISED:  # a __str__ of the user's
        text = "its message cannot be read"
    if not isinstance(error, BaseException):
        return text
    name = type(error).__name__
    return f"{name}: {text}"[:REASON_LENGTH] if text else name


def reason_at(error: BaseException, where: str = "") -> str:
    """``flush: ValueError: the first line (helpers.py:12)``: the reason, with the line of the
    user's code that it comes from where there is one, and the method if it was not ``execute``.
    """
    place = place_of(error)
    end = f" ({place})" if place else ""
    return f"{reason_in(error, where)[: max(0, REASON_LENGTH - len(end))]}{end}"


def reason_in(error: BaseException, where: str) -> str:
    """``flush: ValueError: the first line``: the reason, with the method if it was not
    ``execute``.
    """
    return f"{where}: {reason_of(error)}" if where else reason_of(error)


def reason_given(reason: object) -> str:
    """Return the reason that a bolt gives: of an exception that it has caught with its line."""
    return reason_at(reason) if isinstance(reason, BaseException) else reason_of(reason)


def one_line(text: str) -> str:
    """The first line that is not empty, not too long."""
    lines = text.lstrip()[:REASON_LENGTH].splitlines()
    return lines[0].rstrip() if lines else ""

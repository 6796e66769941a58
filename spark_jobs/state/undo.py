"""Undo records of a commit: one for each entry that it changed, in the form that the Lua
scripts write. Pure.

``=old``   the value that was there        ``-``      nothing was there
``+n``     incremented by n                ``*n``     nothing was there, and it was incremented by n
``~…``     the marks of one call: its field is no entry's

An increment is taken back by the opposite one and not by the old value: another task may have
incremented the entry too.
"""

from __future__ import annotations


def value_before(current: bytes | None, record: bytes | None) -> bytes | None:
    """The entry before the commit that left ``record``; None for nothing."""
    if record is None:
        return current
    kind = record[:1]
    rest = record[1:]
    if kind == b"=":
        return rest
    if kind == b"-":
        return None
    if kind == b"~":
        return current
    try:
        number = int(b"0" if current is None else current) - int(rest)
    except (
        ValueError
    ):  # another task has put something else there: there is nothing to take back any more
        return current
    return None if kind == b"*" and number == 0 else b"%d" % number

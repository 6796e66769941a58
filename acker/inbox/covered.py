"""Text form of what a step covers: lua/finish.lua reads it. Pure.

STEP TICKS TUPLES BYTES WORK|POSITION POSITION …|POSITION=HEX POSITION=HEX …
"""

from __future__ import annotations

from tiercel.acker.inbox.records import Covered

_UNKNOWN = "0"


def encode(covered: Covered) -> str:
    """Return the text of ``covered``."""
    numbers = f"{covered.step} {covered.ticks} {covered.tuples} {covered.bytes}"
    work = covered.work or _UNKNOWN
    part = " ".join(f"{position}={rows.hex()}" for position, rows in covered.part.items())
    return f"{numbers} {work}|{' '.join(covered.whole)}|{part}"


def decode(text: str) -> Covered:
    r"""Return what ``encode`` was given.

    >>> decode("3 0 12 900 d1ce|1-0 2-0|5-1=0f") == Covered(
    ...     step=3, whole=("1-0", "2-0"), part={"5-1": b"\x0f"}, tuples=12, bytes=900, work="d1ce"
    ... )
    True
    """
    numbers, whole, part = text.split("|")
    *counts, work = numbers.split()
    step, ticks, tuples, size = map(int, counts)
    pairs = (pair.split("=") for pair in part.split())
    return Covered(
        step=step,
        whole=tuple(whole.split()),
        part={position: bytes.fromhex(rows) for position, rows in pairs},
        ticks=ticks,
        tuples=tuples,
        bytes=size,
        work="" if work == _UNKNOWN else work,
    )

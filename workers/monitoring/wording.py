"""Numbers as people read them. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from datetime import datetime

from tiercel.spark_jobs.logs.formatters import printable

UNKNOWN = "?"
_WHITE = "\t\n"
_DUMPED = 16
# Bytes a line.
_NAMED = 3


def count(number: int | None) -> str:
    """``1,234``, or a question mark."""
    return UNKNOWN if number is None else f"{number:,}"


def per_second(rate: float | None) -> str:
    """One decimal below ten, none above."""
    if rate is None:
        return UNKNOWN
    return f"{rate:.1f}" if rate < 9.95 else f"{rate:,.0f}"


def milliseconds(number: float | None) -> str:
    """Three significant digits; empty for None."""
    if number is None:
        return ""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.3f}"


def seconds(number: float) -> str:
    """``1.2 s``."""
    return f"{number:,.1f} s"


def share(number: float) -> str:
    """``0.123``, as Storm shows capacities."""
    return f"{number:.3f}"


def size(number: int) -> str:
    """``1.2 MiB``."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def tasks_named(tasks: Sequence[int]) -> str:
    """``3, 4, 5 and 2 more``; empty without tasks."""
    rest = len(tasks) - _NAMED
    named = ", ".join(str(task) for task in tasks[:_NAMED])
    return f"{named} and {count(rest)} more" if rest > 0 else named


def body_text(body: bytes, whole: int) -> tuple[str, str]:
    """Return the kind of a body, "text" or "binary", and the body in readable form; ``whole`` is
    the size of the body, in bytes.

    Text is UTF-8 without control characters; invisible characters, and characters that change how
    others look, are escaped. Any other body becomes a hexadecimal dump. If ``body`` is only the
    beginning, the last line gives the number of missing bytes.
    """
    try:
        # The cut may have gone through a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(body, final=len(body) == whole)
    except UnicodeError:
        text = "\0"
    text = text.replace("\r\n", "\n")
    if any(ord(each) < 32 and each not in _WHITE + "\r" for each in text):
        kind = "binary"
        shown = "\n".join(_dumped(body, start) for start in range(0, len(body), _DUMPED))
    else:
        kind = "text"
        shown = printable(text, kept=_WHITE)
    rest = whole - len(body)
    return kind, f"{shown}\n… and {count(rest)} bytes more" if rest else shown


def _dumped(body: bytes, start: int) -> str:
    line = body[start : start + _DUMPED]
    letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
    return f"{start:08x}  {line.hex(' '):<{3 * _DUMPED}} {letters}"


def span(number: float) -> str:
    """``1 d 2 h``, ``3 h 4 min``, ``5 min 6 s``: the two largest units."""
    whole = round(number)
    parts = [
        (whole // 86_400, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "min"),
        (whole % 60, "s"),
    ]
    first = next((at for at, (amount, _) in enumerate(parts) if amount), len(parts) - 1)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2])


def when(moment: datetime) -> str:
    """Local time, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(number_ms: float) -> str:
    """``0.4 ms``, ``12 ms``, ``1.2 s``, ``45 s``."""
    if number_ms < 9.95:
        return f"{number_ms:.1f} ms"
    if number_ms < 995:
        return f"{number_ms:,.0f} ms"
    return f"{number_ms / 1000:,.1f} s" if number_ms < 9_950 else f"{number_ms / 1000:,.0f} s"

"""The traceback that belongs to an error of the list. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tiercel.acker.metrics.traces import KnownError
from tiercel.workers.monitoring.wording import count, when


def known_for(known: Iterable[KnownError], component: str, message: str) -> KnownError | None:
    """Return the kind of an error that a component reported; None if no traceback is kept.

    A spout reports what a bolt raised too, and names it: ``enrich[7]: KeyError: … (a.py:1)``.
    """
    for each in known:
        first = each.first
        place = f" ({first.place})" if first.place else ""
        if (
            (component == first.component or message.startswith(f"{first.component}["))
            and message.endswith(place)
            and first.kind in message.removesuffix(place)
        ):
            return each
    return None


def told(known: KnownError) -> str:
    """Return which error it is, how often it came, and when: one line above its traceback."""
    first = known.first
    times = (
        f"once, {when(first.at)}"
        if known.count == 1
        else f"{count(known.count)} times, {when(first.at)} to {when(known.last)}"
    )
    return f"{first.component}: {first.reason} · {times} · the first one, in task {first.task}"

"""``tiercel errors --traceback``: what bolts raised, by kind, each with its first traceback."""

from __future__ import annotations

from contextlib import closing
from textwrap import indent

from tiercel.acker.metrics.redis_counters import RedisMetrics
from tiercel.acker.metrics.traces import KnownError
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.workers.control.registry import names_of
from tiercel.workers.terminal import say


def show_tracebacks(redis_url: str, topology: str | None, limit: int) -> None:
    """Write the kinds that came last to stdout, the newest first: of one topology, or of all.

    Raises UsageError for a topology that never ran.
    """
    found: list[tuple[str, KnownError]] = []
    for name in names_of(redis_url, topology):
        with closing(RedisMetrics(redis_url, name)) as metrics:
            found += [(name, known) for known in metrics.traces()]
    found.sort(key=lambda each: each[1].last, reverse=True)
    if not found:
        say("no errors that a bolt raised")
        return
    several = len({name for name, _ in found}) > 1
    say("\n\n".join(_told(known, name if several else "") for name, known in found[:limit]))


def _told(known: KnownError, topology: str) -> str:
    first = known.first
    where = f"{topology} {first.component}" if topology else first.component
    times = "once" if known.count == 1 else f"{known.count:,} times"
    began = first.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    last = known.last.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    when = f"at {began}" if known.count == 1 else f"first at {began}, last at {last}"
    head = f"{where}: {first.reason}\n{times}, {when}; the first one in task {first.task}:"
    # Indented: no message can forge the beginning of another error.
    return redact(f"{head}\n{indent(first.text, '    ', lambda _: True)}")

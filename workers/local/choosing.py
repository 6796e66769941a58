"""Finds the private servers of the ``tiercel run`` that a command means, where it names none."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.workers.config import Settings
from tiercel.workers.errors import UsageError
from tiercel.workers.local.addresses import RunNote, runs_here


def with_run(
    settings: Settings,
    *,
    run: str | None = None,
    topology: str | None = None,
    queues: Sequence[str] = (),
) -> tuple[Settings, RunNote | None]:
    """Return the settings, with the addresses of a private run if none are given, and that run.

    ``run`` names its topology, which goes before all else. Otherwise it is the one of this
    ``topology``, the one that has these ``queues``, or the only one. Raises UsageError if there are
    several, and for a ``run`` that there is not.
    """
    if run is None and (settings.amqp or settings.redis):
        return settings, None
    everything = [note for note in runs_here() if note.private]
    ready = [note for note in everything if note.amqp and note.redis]
    found = _meant(ready, run, topology, queues)
    if found is None:
        starting = [note for note in everything if note not in ready]
        if run is not None:
            raise UsageError(f"there is no private run of {run!r} here; {_there_are(ready)}")
        if not ready and starting:
            raise UsageError(
                f"{', '.join(map(str, starting))} has no servers yet: try again in a moment"
            )
        return settings, None
    return settings.with_services(found.amqp or "", found.redis or "", found.management), found


def _meant(
    runs: Sequence[RunNote], run: str | None, topology: str | None, queues: Sequence[str]
) -> RunNote | None:
    name = run or topology
    named = [note for note in runs if note.topology == name]
    if named or run is not None:
        return named[0] if named else None
    having = [note for note in runs if queues and set(queues) <= set(note.queues)]
    if len(having) == 1:
        return having[0]
    if len(runs) > 1:
        raise UsageError(
            f"several runs have private servers here: {', '.join(map(str, runs))}; "
            + (
                f"none of them is of {topology}"
                if topology is not None
                else "name the topology of one (with --run where queues are named), or the server"
            )
        )
    return runs[0] if runs else None


def _there_are(runs: Sequence[RunNote]) -> str:
    return f"there are {', '.join(map(str, runs))}" if runs else "none runs"

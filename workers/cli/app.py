"""The command ``tiercel``: the list of its commands and their files.

The file of a command is imported only when the command is called: Arrow, PySpark, NiceGUI and rich
are slow to import, and neither ``tiercel --help`` nor most commands need them.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from tiercel.acker.errors import AckerError
from tiercel.compose.errors import ServiceError
from tiercel.queues.errors import QueuesError
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.workers.errors import UsageError, WorkersError
from tiercel.workers.terminal import say

# The roots of our error trees, whose messages say what to do. Any other error is a bug and is shown
# with its traceback.
EXPECTED = (WorkersError, ServiceError, AckerError, QueuesError, SparkJobsError)

USAGE = 2
# A full disk or quota, and a disk that nothing may be written to.
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# Maps each file in this folder to its commands, with the first line of their help.
COMMANDS = {
    "first_look": {
        "new": "Write a project: a topology that runs, its tests, and a compose file.",
        "demo": "Count a real text while things fail, and show that nothing is lost.",
    },
    "run": {
        "run": "Run a whole topology on this machine, with private servers where none are named.",
        "check": "Check settings, servers and rights, before anything starts; nothing is changed.",
        "spout": (
            "Run one task of one spout, or of each; where all tasks have a worker, wait in reserve."
        ),
    },
    "driver": {
        "driver": "Run the bolts of a topology on Spark.",
        "prepare": "Make Spark's JVM start in half the CPU time from now on.",
    },
    "publish": {
        "publish": "Publish files into a queue or an exchange; the broker confirms each message.",
    },
    "queues": {
        "dead-letters": "Look at what could not be processed, put it back, or throw it away.",
        "peek": "Look at the first messages of a queue; they stay in it, in their order.",
    },
    "state": {
        "state": "Look at the state of a stateful bolt, export states to a file, or import them.",
    },
    "topologies": {
        "list": "List all topologies that ran here: their health, order, processes, newest run.",
        "depths": "Show how many messages wait, are being worked on, and are dead.",
        "top": "Watch a topology in the terminal: spouts, bolts, __acker, queues, errors.",
        "status": "Say how topologies are, and name their faults.",
        "monitor": "Serve a web page about all topologies, and /metrics for Prometheus.",
        "errors": ("Show the newest errors with their bolt or spout, task, reason and message."),
    },
    "orders": {
        "activate": "Let the spouts of a deactivated topology emit again.",
        "deactivate": "Stop the spouts of a topology from emitting; messages in flight go on.",
        "pause": "Stop a bolt from taking tuples; the other bolts go on.",
        "resume": "Let a paused bolt take tuples again.",
        "rebalance": "Spread the bolt tasks of a topology over the executors that Spark has now.",
        "kill": "End all processes of a topology, once messages in flight are done.",
        "forget": (
            "Remove everything of a topology that does not run from Redis: states, figures, orders."
        ),
    },
}


class _Commands(TyperGroup):
    """Lists all commands with their first lines; imports only the command that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=line)
            for lines in COMMANDS.values()
            for name, line in lines.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, known, others = super().resolve_command(ctx, args)
        return name, known and loaded(known.name or ""), others


app = typer.Typer(
    name="tiercel",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        say(f"tiercel {metadata.version('tiercel')}")
        raise typer.Exit


@app.callback()
def tiercel(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Run topologies with Storm's guarantee: every message fully processed or replayed.

    On RabbitMQ, Redis and Spark.
    """


def loaded(name: str) -> Any:
    """Import the file of a command, and return the command.

    Raises UsageError in a deleted folder, in which no path is resolved and no settings are found.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the current folder has been deleted: cd into one that exists, also if it has the same "
            "name again"
        ) from None
    [file] = [file for file, lines in COMMANDS.items() if name in lines]
    with _ended_by_signals():
        module = import_module(f"tiercel.workers.cli.{file}")
    return get_group(module.commands).commands[name]


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C end the process at once during imports, without a traceback; no work has begun."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    """Run the command ``tiercel``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names and reasons may have characters that the encoding of a terminal or a pipe lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    with one_line_errors():
        app()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn expected errors of a command into one line, ``tiercel: …``, and exit code 2; a full disk
    too, with exit code 1, because it may have room at the next start.

    Works as a decorator too.
    """
    try:
        yield
    except EXPECTED as error:
        message = str(error) or type(error).__doc__ or type(error).__name__
        say(f"tiercel: {redact(message)}", err=True)
        raise SystemExit(USAGE) from None
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        # What stdout still holds cannot be written either: Python would try again as it ends.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        place = f" ({error.filename})" if error.filename else ""
        say(
            f"tiercel: cannot write{place}: {error.strerror}; make room, or write elsewhere",
            err=True,
        )
        raise SystemExit(1) from None

"""Failure reasons in one readable line, with the line of the user's code that raised the error; and
tracebacks without tiercel's frames. Pure, but ``raised`` ends a process that a bolt has forked.

The user's code is all code outside tiercel and libraries: an error in ``json.loads`` is reported at
the bolt's line that calls it. If the bolt itself is an installed package, that package counts as
the user's code.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType

from tiercel.acker.ledger import REASON_LENGTH

# Set in a process that a bolt has forked. Such a process must not return to the engine, or it would
# go on as a second process of the bolt's tasks.
FORKED = threading.Event()

# Characters of a traceback. The last lines say most, so the first ones get less room.
LONGEST = 8_000
_HEAD = 2_000

_OURS = "tiercel"
_EXAMPLES = "tiercel.examples"
# The modules between a call of a collector by the user and the look for its line.
_COLLECTORS = (
    "tiercel.spark_jobs.reasons",
    "tiercel.spark_jobs.emitting.",
    "tiercel.spark_jobs.bolts.verdicts",
    "tiercel.spark_jobs.kinds.calls.",
)
_REMOTE = re.compile(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)
_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)


def place_of(error: BaseException) -> str:
    """Return ``helpers.py:12``, the innermost line of the user's code that the error went through.

    Empty if there is none. A module of a package is named with the package:
    ``shop/helpers.py:12``. The place of a group is that of its first error.
    """
    if isinstance(error, BaseExceptionGroup) and (place := place_of(error.exceptions[0])):
        return place
    # The frames that another process had, for an error of a process pool.
    frames = [*_frames(error.__traceback__), *_remote_frames(error)]
    frames = [each for each in frames if not _is_ours(each[0]) and not _is_standard(each[1])]
    if not frames:
        return ""
    own = [each for each in frames if not _is_library(each[1])]
    if not own:
        # The bolt itself is an installed package.
        home = frames[0][0].partition(".")[0]
        own = [each for each in frames if each[0].partition(".")[0] == home]
    module, file, line = own[-1]
    return f"{_shown(file, module)}:{line}"


def _calling_place() -> str:
    """Return the line of the user's code that called a collector, in this thread; empty if a
    built-in sink did.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect's functions read files
    while frame is not None and not is_users(_module(frame), frame.f_code.co_filename):
        if _is_ours(_module(frame)) and not _module(frame).startswith(_COLLECTORS):
            return ""
        frame = frame.f_back
    return (
        ""
        if frame is None
        else f"{_shown(frame.f_code.co_filename, _module(frame))}:{frame.f_lineno}"
    )


def is_users(module: str, file: str) -> bool:
    """Return True for a module that is neither tiercel's nor a library's."""
    return not _is_ours(module) and not _is_library(file)


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an error and its causes, starting at the user's first line.

    The middle of a long traceback is left out.
    """
    first = error.__traceback__
    while first is not None and _is_ours(_module(first.tb_frame)):
        first = first.tb_next
    try:
        lines = traceback.format_exception(type(error), error, first or error.__traceback__)
        text = "".join(lines).rstrip()
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        text = f"{type(error).__name__}: its traceback cannot be read"
    if len(text) <= LONGEST:
        return text
    tail = LONGEST - _HEAD
    return f"{text[:_HEAD]}\n… {len(text) - LONGEST:,} characters left out …\n{text[-tail:]}"


def _frames(first: TracebackType | None) -> Iterator[tuple[str, str, int]]:
    """Module, file and line of each frame, the outermost first."""
    for frame, line in traceback.walk_tb(first):
        yield _module(frame), frame.f_code.co_filename, line


def _remote_frames(error: BaseException) -> Iterator[tuple[str, str, int]]:
    """The frames of an error that a process pool has sent; the pool sends only their text."""
    text = getattr(error.__cause__, "tb", None)
    for file, line in _REMOTE.findall(text) if isinstance(text, str) else ():
        yield "", file, int(line)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(module: str) -> bool:
    return (module == _OURS or module.startswith(f"{_OURS}.")) and not (
        module == _EXAMPLES or module.startswith(f"{_EXAMPLES}.")
    )


@lru_cache(maxsize=1024)
def _is_library(file: str) -> bool:
    return _is_standard(file) or not _INSTALLED.isdisjoint(Path(file).parts)


@lru_cache(maxsize=1024)
def _is_standard(file: str) -> bool:
    # Debian installs packages inside the standard library's folder.
    return file.startswith("<") or (
        file.startswith(_STANDARD) and _INSTALLED.isdisjoint(Path(file).parts)
    )


@lru_cache(maxsize=1024)
def _shown(file: str, module: str) -> str:
    path = Path(file)
    in_package = "." in module or path.stem == "__init__"
    return f"{path.parent.name}/{path.name}" if in_package else path.name


def lacks_memory(error: BaseException) -> bool:
    """Return True for a MemoryError, also for one in a group."""
    return isinstance(error, MemoryError) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(MemoryError) is not None
    )


def raised() -> tuple[type[BaseException], ...]:
    """Return the type of the exception that is being handled, if it ends a call of a bolt but not
    its Spark task; for ``except raised()`` around the user's code.

    Python evaluates the expression when an exception comes. All types belong to it but for Ctrl-C,
    which Python raises in the main thread: a library's ``sys.exit``, a panic of a Rust extension
    and ``gevent.Timeout`` are no ``Exception``, and a process that ended with one would be
    restarted for the same tuple again and again.

    In a process that a bolt has forked it does not return: that process ends.
    """
    error = sys.exc_info()[1]
    if error is None:
        return ()
    if FORKED.is_set():
        if isinstance(error, SystemExit) and not error.code:
            os._exit(0)
        traceback.print_exception(error)
        os._exit(1)
    is_main = threading.current_thread() is threading.main_thread()
    return () if isinstance(error, KeyboardInterrupt) and is_main else (type(error),)


def reason_of(error: object) -> str:
    """``ValueError: the first line`` of an exception; of a group, with its first error.

    For anything else, the first line of its text, which may be empty.
    """
    try:
        text = one_line(str(error))
    except raised():  # from a user's __str__
        text = "its message cannot be read"
    if not isinstance(error, BaseException):
        return text
    name = type(error).__name__
    own = f"{name}: {text}" if text else name
    if isinstance(error, BaseExceptionGroup):
        # The text of a group, such as a ``TaskGroup`` raises, says only how many errors it has.
        own = f"{own}: {reason_of(error.exceptions[0])}"
    return own[:REASON_LENGTH]


def reason_at(error: BaseException, where: str = "", place: str = "") -> str:
    """``flush: ValueError: the first line (helpers.py:12)``: the reason, with the method unless it
    is ``execute``, and the line of the user's code if there is one; else ``place``.
    """
    place = place_of(error) or place
    end = f" ({place})" if place else ""
    return f"{reason_in(error, where)[: max(0, REASON_LENGTH - len(end))]}{end}"


def reason_in(error: BaseException, where: str) -> str:
    """``flush: ValueError: the first line``: the reason, with the method unless it is
    ``execute``.
    """
    return f"{where}: {reason_of(error)}" if where else reason_of(error)


def reason_given(reason: object) -> str:
    """Return the reason that a bolt gives; an exception that it has caught is shown with its line.

    If none of the bolt's lines raised it, as for an error that a pool has kept, the line is the one
    that gives the reason.
    """
    if not isinstance(reason, BaseException):
        return reason_of(reason)
    return reason_at(reason, place=_calling_place() if reason.__traceback__ else "")


def one_line(text: str) -> str:
    """The first line that is not empty, cut to ``REASON_LENGTH``."""
    lines = text.lstrip()[:REASON_LENGTH].splitlines()
    return lines[0].rstrip() if lines else ""

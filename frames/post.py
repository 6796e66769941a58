"""Notices to the reader of a query from other processes on the driver's host: a batch is committed,
or a message failed.

A notice and its answer are each one line of JSON over a Unix socket, in a folder that only this
user can enter. Reader, driver and listener run on one host; from elsewhere, such as a client of
Spark Connect, no reader is found.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiercel.frames.columns import DELIVERY
from tiercel.frames.errors import FramesError, ReaderGoneError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_YOUNG_S = 60.0
_LONGEST_LINE = 64 * 1024 * 1024
_FOLDER = "tiercel-readers-"
# The path of a socket may have 107 bytes, including the random suffix of a folder.
_LONGEST_FOLDER = 107 - len("-01234567/0123456789abcdef.sock")
_READER = re.compile(r"[0-9a-f]{16}")
# Messages per notice.
_AT_ONCE = 10_000
_REASON_CHARACTERS = 500
# A name written by ``delivery_name`` in a stream; a batch query has no reader.
_NAME = re.compile(r"([0-9a-f]{16})\.(\d+)\.(\d+)\.(\d+)", re.ASCII)

Word = Mapping[str, Any]


def fail_messages(rows: DataFrame, reason: str | Column, *, again: bool = True) -> int:
    """Fail the messages of these rows, instead of acking them when their batch is committed.

    Call it in ``foreachBatch``, with rows that still have the column ``delivery``; ``reason`` is a
    text, or a column of the rows. A failed message is delivered again after a back-off, and goes to
    its dead-letter queue with the reason when it has failed more often than ``deliveryLimit``; with
    ``again=False`` it goes there at once. Returns the number of failed messages; a message that was
    given back meanwhile, because a connection was lost, is not counted: it is delivered again
    anyway.

    Raises ReaderGoneError if the query has ended, and FramesError without that column, before any
    message has failed.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - importing this module needs no session

    if DELIVERY not in rows.columns:
        raise FramesError(
            f"fail_messages needs the column {DELIVERY!r} of the rows that were read; keep it in "
            "the select"
        )
    text = functions.lit(reason) if isinstance(reason, str) else reason
    failures = _by_reader(rows.select(DELIVERY, text.cast("string")).collect())
    return sum(_tell(reader, failed, again=again) for reader, failed in failures.items())


def _by_reader(rows: Iterable[tuple[Any, Any]]) -> dict[str, list[list[Any]]]:
    """Group the failures by reader; raises FramesError.

    A message with several rows, as after ``explode``, is one failure, with the first reason.
    """
    failures: dict[str, list[list[Any]]] = {}
    first: dict[Any, Any] = dict(reversed([*rows]))
    for name, why in first.items():
        found = _NAME.fullmatch(str(name))
        if found is None:
            raise FramesError(
                f"{name!r:.50} names no message that a stream has read: {DELIVERY!r} must be the "
                "column of the source, and no field of the body"
            )
        reader, *place = found.groups()
        failed = [*map(int, place), str(why or "")[:_REASON_CHARACTERS]]
        failures.setdefault(reader, []).append(failed)
    return failures


def _tell(reader: str, failures: list[list[Any]], *, again: bool) -> int:
    count = 0
    for at in range(0, len(failures), _AT_ONCE):
        answer = tell(reader, {"fail": failures[at : at + _AT_ONCE], "again": again})
        if answer is None:
            raise ReaderGoneError(
                "the query that read these messages has ended, or runs on another host; they are "
                "delivered again"
            )
        count += int(answer["failed"])
    return count


class Post:
    """Receives notices for a reader, on separate threads, and answers them."""

    def __init__(self, reader: str, on_word: Callable[[Word], Word]) -> None:
        self._on_word = on_word
        folder = _folder_of_sockets()
        _sweep(folder)
        self._path = folder / f"{reader}.sock"
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        self._socket.listen(16)
        threading.Thread(target=self._run, name="tiercel post", daemon=True).start()

    def close(self) -> None:
        """Receive no more notices. Idempotent."""
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[caller], daemon=True).start()

    def _answer(self, caller: socket.socket) -> None:
        with caller:
            caller.settimeout(_TIMEOUT_S)
            try:
                _send(caller, self._on_word(_receive(caller)))
            except EOFError:
                pass  # another reader checked whether this one is alive
            except (OSError, ValueError, TypeError, KeyError) as error:
                log.warning(
                    "could not read a notice to a reader: %r", error, extra={"event": "bad_word"}
                )


def tell(reader: str, word: Word) -> Word | None:
    """Send a notice to a reader and return the answer; None if there is no such reader here."""
    if not _READER.fullmatch(reader):
        return None
    places = (folder / f"{reader}.sock" for folder in _folders())
    try:
        place = next(path for path in places if path.is_socket())
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(_TIMEOUT_S)
            caller.connect(str(place))
            _send(caller, word)
            return _receive(caller)
    except (StopIteration, OSError, ValueError, EOFError):
        return None


def _send(to: socket.socket, word: Word) -> None:
    to.sendall(json.dumps(word).encode() + b"\n")


def _receive(caller: socket.socket) -> Word:
    with caller.makefile("rb") as lines:
        line = lines.readline(_LONGEST_LINE)
    if not line:
        raise EOFError
    word = json.loads(line)
    if not isinstance(word, dict):
        raise TypeError("a notice is a JSON object")
    return word


def _sweep(folder: Path) -> None:
    """Remove the sockets of readers that were killed."""
    for path in folder.glob("*.sock"):
        with suppress(OSError):
            # A new socket may not listen yet.
            if time.time() - path.stat().st_mtime > _YOUNG_S and not _listens(path):
                path.unlink()


def _listens(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(_TIMEOUT_S)
            caller.connect(str(path))
    except ConnectionRefusedError:
        return False
    return True


def _folder_of_sockets() -> Path:
    """Return the folder for the socket of a new reader, created if it is missing."""
    folder = _folder_by_name()
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise OSError(
            f"the name of {folder} is too long for sockets in it: set TMPDIR to a folder with a "
            "shorter one"
        )
    return private_folder()


def private_folder() -> Path:
    """Return a folder that only this user can enter, created if it is missing.

    Its name is predictable, so another user may have taken it in a shared temporary folder: then it
    gets a random suffix, and ``tell`` still finds it.
    """
    folder = _folder_by_name()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return next(iter(_folders()), None) or Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))


def _folder_by_name() -> Path:
    return Path(tempfile.gettempdir()) / f"{_FOLDER}{os.getuid()}"


def _folders() -> list[Path]:
    """Return the folders of readers that belong to this user and that no other user can enter."""
    named = Path(tempfile.gettempdir()).glob(f"{_FOLDER}{os.getuid()}*")
    return sorted(folder for folder in named if _is_private(folder))


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

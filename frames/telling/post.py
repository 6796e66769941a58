"""A word to a reader, and its answer, each one line of JSON over a Unix socket.

The socket lies in a folder that only this user can enter. Reader, driver and listener run on one
host; from elsewhere, as from a client of Spark Connect, no reader is found.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_YOUNG_S = 60.0
_LONGEST_LINE = 64 * 1024 * 1024
_FOLDER = "tiercel-readers-"
# Of the 107 bytes that the path of a socket may have, also in a folder with a name of its own.
_LONGEST_FOLDER = 107 - len("-01234567/0123456789abcdef.sock")
_READER = re.compile(r"[0-9a-f]{16}")

Word = Mapping[str, Any]


class Post:
    """Hears words, in threads of its own, and answers them."""

    def __init__(self, reader: str, on_word: Callable[[Word], Word]) -> None:
        self._on_word = on_word
        folder = _folder()
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
        """Hear no more. Idempotent."""
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
                pass  # another reader looked who is here
            except (OSError, ValueError, TypeError, KeyError) as error:
                log.warning(
                    "a word to a reader could not be heard: %r", error, extra={"event": "bad_word"}
                )


def tell(reader: str, word: Word) -> Word | None:
    """Return the reader's answer; None if there is no such reader here."""
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
        raise TypeError("a word is a JSON object")
    return word


def _sweep(folder: Path) -> None:
    """Remove the sockets of readers that were killed."""
    for path in folder.glob("*.sock"):
        with suppress(OSError):
            # One that is young may have been made a moment ago, and not listen yet.
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


def _folder() -> Path:
    """Return the folder for the socket of a new reader, made if it is missing.

    Its name is known, so another user may have taken it where the temporary folder is shared:
    then it is one with a name of its own, which ``tell`` finds too.
    """
    folder = Path(tempfile.gettempdir()) / f"{_FOLDER}{os.getuid()}"
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise OSError(
            f"the name of {folder} is too long for sockets in it: set TMPDIR to a folder with a "
            "shorter one"
        )
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return next(iter(_folders()), None) or Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))


def _folders() -> list[Path]:
    """Return the folders of readers that belong to this user, and that no other can enter."""
    named = Path(tempfile.gettempdir()).glob(f"{_FOLDER}{os.getuid()}*")
    return sorted(folder for folder in named if _is_private(folder))


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

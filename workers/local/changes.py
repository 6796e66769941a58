"""Sees that files have changed, by looking at their times and sizes now and then."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Time of the last change in nanoseconds, size; None: there is no such file.
_Look = tuple[int, int] | None


class Changes:
    """Remembers how the files were that it follows."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._known: dict[Path, _Look] = {}
        self._last: dict[Path, _Look] = {}
        self.follow(files)

    def follow(self, files: Iterable[Path]) -> None:
        """Follow these files from now on; those that are followed already are as they were seen."""
        self._known = {file: self._known.get(file, _look(file)) for file in files}
        self._last = dict(self._known)

    def also(self, files: Iterable[Path]) -> None:
        """Follow these too."""
        self.follow([*self._known, *files])

    def look(self) -> list[Path]:
        """Return the files that have changed since the last change that was told of.

        Only once two looks have found the same: an editor may still be writing.
        """
        now = {file: _look(file) for file in self._known}
        written, self._last = now == self._last, now
        if not written:
            return []
        changed = [file for file, seen in now.items() if seen != self._known[file]]
        self._known = now
        return changed


def _look(file: Path) -> _Look:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size

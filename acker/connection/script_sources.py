"""The texts of Lua scripts: from their files, and several as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

# First line of scripts that also run on a server whose memory is full: those that free memory, and
# those without which what is in flight could not end.
_ALSO_WHEN_FULL = "#!lua flags=allow-oom\n"


@cache
def script_source(*names: str, package: str = "tiercel.acker") -> str:
    """The text of a script in the folder ``lua/`` of a package, behind its preludes.

    The flags of the script come first.
    """
    folder = resources.files(package).joinpath("lua")
    *preludes, own = (folder.joinpath(f"{name}.lua").read_text() for name in names)
    flags = own[: own.index("\n") + 1] if own.startswith("#!") else ""
    return "".join([flags, *preludes, own[len(flags) :]])


def in_turn(texts: Sequence[str]) -> str:
    """Return the script that makes calls of these one after the other: see lua/in_turn.lua.

    Flags are of a whole script: it runs on a full server if all of these do.
    """
    full = all(text.startswith(_ALSO_WHEN_FULL) for text in texts)
    parts = [_ALSO_WHEN_FULL if full else "", "local calls = {}\n"]
    for number, text in enumerate(texts, start=1):
        body = text.partition("\n")[2] if text.startswith("#!") else text
        parts.append(f"calls[{number}] = function(KEYS, ARGV)\n{body}\nend\n")
    return "".join([*parts, script_source("in_turn", package="tiercel.acker.connection")])

"""The texts of Lua scripts: from their files, and several as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources


@cache
def script_source(name: str, package: str = "tiercel.acker") -> str:
    """The text of a script in the folder ``lua/`` of a package."""
    return resources.files(package).joinpath("lua", f"{name}.lua").read_text()


def in_turn(texts: Sequence[str]) -> str:
    """Return the script that makes calls of these one after the other: see lua/in_turn.lua.

    The first line of a script that has flags is left out: the flags are of a whole script.
    """
    parts = ["local calls = {}\n"]
    for number, text in enumerate(texts, start=1):
        body = text.partition("\n")[2] if text.startswith("#!") else text
        parts.append(f"calls[{number}] = function(KEYS, ARGV)\n{body}\nend\n")
    return "".join([*parts, script_source("in_turn", "tiercel.acker.connection")])

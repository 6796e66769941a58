"""Python processes without an installed package, including the ones that Spark starts."""

from __future__ import annotations

import os
from pathlib import Path

# Python imports a module of this name at every start, in Spark's workers too.
_CUSTOMIZE = """
import pathlib
import sys

with pathlib.Path(__file__).with_name("processes.log").open("a") as log:
    log.write(" ".join(sys.orig_argv) + "\\n")


class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(name + " is not installed here")


sys.meta_path.insert(0, Without())
"""


class Without:
    """An environment for processes in which these packages are missing."""

    def __init__(self, folder: Path, *packages: str) -> None:
        self._folder = folder
        script = _CUSTOMIZE.replace("{packages}", repr(set(packages)))
        (folder / "sitecustomize.py").write_text(script)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._folder)}

    @property
    def command_lines(self) -> list[str]:
        """Return the command lines of all Python processes that have run in it."""
        return (self._folder / "processes.log").read_text().splitlines()

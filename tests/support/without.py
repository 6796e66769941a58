"""Processes of Python where a package is not installed, those that Spark starts among them."""

from __future__ import annotations

import os
from pathlib import Path

# Python runs a module of this name before anything else, in workers of Spark too.
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
    """An environment for processes in which these packages are not there."""

    def __init__(self, folder: Path, *packages: str) -> None:
        self._folder = folder
        script = _CUSTOMIZE.replace("{packages}", repr(set(packages)))
        (folder / "sitecustomize.py").write_text(script)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._folder)}

    @property
    def command_lines(self) -> list[str]:
        """Return those of all processes of Python that have run in it."""
        return (self._folder / "processes.log").read_text().splitlines()

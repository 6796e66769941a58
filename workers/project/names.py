"""The names in a new project, all of them from the name of its folder."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from tiercel.workers.errors import UsageError

_PROJECT = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class ProjectNames:
    """Names that the files of a project have in them."""

    # Of the project and its topology: ``my-project``.
    project: str
    # Of its module: ``my_project``.
    module: str


def names_for(folder: str) -> ProjectNames:
    """Return the names for a project in a folder of this name; raises UsageError."""
    if not _PROJECT.fullmatch(folder):
        raise UsageError(
            f"{folder!r:.60} cannot be the name of a project, which its module is named after: "
            "write small letters, digits and hyphens, such as my-project"
        )
    module = folder.replace("-", "_")
    if module in sys.stdlib_module_names or keyword.iskeyword(module) or _installed(module):
        raise UsageError(
            f"there is a module {module!r} already, which the project's own would hide: "
            "choose another name for the project"
        )
    return ProjectNames(project=folder, module=module)


def _installed(module: str) -> bool:
    # A folder without Python is found too, and hides nothing: it has no origin.
    spec = find_spec(module)
    return spec is not None and spec.origin is not None

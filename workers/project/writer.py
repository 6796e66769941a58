"""Writes the files of a new project."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from tiercel.workers.errors import UsageError
from tiercel.workers.project.names import ProjectNames, names_for
from tiercel.workers.project.stack import stack_for

# File of a project, to its template.
_FILES = {
    "@module@.py": "topology.txt",
    "test_@module@.py": "test.txt",
    "orders.jsonl": "orders.txt",
    "pyproject.toml": "pyproject.txt",
    "README.md": "readme.txt",
    ".gitignore": "gitignore.txt",
}
_STACK = "docker-compose.yml"


def write_project(folder: Path) -> ProjectNames:
    """Write a project into a folder that is new or empty; return the names in it.

    Raises UsageError if the folder has anything in it, has a name that cannot be a project's, or
    cannot be written.
    """
    names = names_for(folder.absolute().name)
    texts = {_filled(path, names): _template(template) for path, template in _FILES.items()}
    try:
        _refuse_what_is_there(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            (folder / path).write_text(_filled(text, names), "utf-8")
        (folder / _STACK).write_text(stack_for(names.project, names.module), "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    return names


def _refuse_what_is_there(folder: Path) -> None:
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty: name a folder that is new or empty")
    elif folder.exists():
        raise UsageError(f"{folder} is a file: name a folder that is new or empty")


def _template(name: str) -> str:
    return (files("tiercel.workers.project") / "templates" / name).read_text("utf-8")


def _filled(text: str, names: ProjectNames) -> str:
    return text.replace("@module@", names.module).replace("@project@", names.project)

"""The commands for a first look: ``new``, which writes a project from ``templates``; ``demo``."""

from __future__ import annotations

import json
import keyword
import re
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tiercel.compose.errors import ServiceStoppedError
from tiercel.workers.config import LogLevel, Settings
from tiercel.workers.demo.session import run_demo
from tiercel.workers.errors import UsageError
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.terminal import say

commands = typer.Typer()
_HEADER = """\
# {project} in containers: docker compose up --wait
#
# It runs the image `tiercel`; build it in a checkout of tiercel:
# docker build -f compose/Dockerfile -t tiercel . For further dependencies of the topology, make
# your own image FROM tiercel and name it in TIERCEL_IMAGE. Passwords are drawn at the first start
# and kept in volumes; all ports listen on this machine only.

"""

# Patterns and replacements; each pattern occurs exactly once in the package's file.
_CHANGES = (
    # The heading.
    (r"\A(#[^\n]*\n)+\n", ""),
    # The build: a project has no source code of tiercel.
    (r"(?m)^  build:\n(    .*\n)+", ""),
    # Prometheus and Grafana, which mount files of the checkout. The volume of Grafana's password
    # stays: without it, a later start would find that role incomplete, and draw all passwords anew.
    (r"(?ms)^  # These two with:.*?(?=^  # The viewer of traces)", ""),
    (r"(?m)^  prometheus:\n  grafana:\n", ""),
)
_EVERYWHERE = (
    (r"docker compose -f compose/docker-compose\.yml", "docker compose"),
    (r"tiercel\.examples\.word_count:topology", "{module}:topology"),
    (r"\.\./examples", "."),
)
_PROJECT = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
# Maps each file of a project to its template.
_FILES = {
    "@module@.py": "topology.txt",
    "test_@module@.py": "test.txt",
    "orders.jsonl": "orders.txt",
    "pyproject.toml": "pyproject.txt",
    "README.md": "readme.txt",
    "tiercel.toml": "settings.txt",
    ".gitignore": "gitignore.txt",
}
_STACK = "docker-compose.yml"


@commands.command()
def new(
    folder: Annotated[
        Path, typer.Argument(help="a new or empty folder; its name is the project's: my-project")
    ],
) -> None:
    """Write a project: a topology that runs, its tests, and a compose file."""
    module = write_project(folder)
    say(
        f"{folder} is there: a topology, its tests, and a compose file. Go on with\n"
        f"\n"
        f"    cd {folder}\n"
        f"    pytest\n"
        f"    tiercel run {module}:topology"
    )


@commands.command()
def demo(
    *,
    calm: Annotated[bool, typer.Option("--calm", help="inject no faults")] = False,
    text: Annotated[
        Path | None, typer.Option(help="the text to count; by default Python's language reference")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="publish the text this many times")] = 3,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="lowest level that is logged")
    ] = "warning",
) -> None:
    """Count a real text while things fail, and show that nothing is lost."""
    stopped = threading.Event()
    on_signals(stopped.set)
    # Always use private servers, even if the environment names others: the demo kills processes.
    settings = Settings.load(log_level=log_level).model_copy(
        update={"amqp": None, "redis": None, "management": None}
    )
    try:
        code = run_demo(settings, text, repeat, stopped, calm=calm)
    except ServiceStoppedError:
        say("stopped")
        code = 130
    sys.exit(code)


def write_project(folder: Path) -> str:
    """Write a project into a new or empty folder; return the name of its module.

    Raises UsageError if the folder is not empty, cannot be written, or has a name unfit for a
    project.
    """
    project = folder.absolute().name
    module = module_for(project)
    templates = files("tiercel.workers.cli") / "templates"
    texts = {path: (templates / name).read_text("utf-8") for path, name in _FILES.items()}
    words = {"@module@": module, "@project@": project, "@tiercel@": installed_from()}
    try:
        _refuse_what_is_there(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            (folder / _filled(path, words)).write_text(_filled(text, words), "utf-8")
        (folder / _STACK).write_text(stack_for(project, module), "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    return module


def _refuse_what_is_there(folder: Path) -> None:
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty: name a folder that is new or empty")
    elif folder.exists():
        raise UsageError(f"{folder} is a file: name a folder that is new or empty")


def _filled(text: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(name, word)
    return text


def installed_from() -> str:
    """Return the requirement that installs this tiercel again: a version, or the URL of a commit,
    a wheel or a folder.
    """
    try:
        package = distribution("tiercel")
        told = package.read_text("direct_url.json")  # of pip, uv and others, by PEP 610
        if told is None:
            return f"tiercel>={package.version}"
        found = json.loads(told)
        vcs = found.get("vcs_info")
        url = f"{vcs['vcs']}+{found['url']}@{vcs['commit_id']}" if vcs else found["url"]
    except (PackageNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return "tiercel"
    return f"tiercel @ {url}"


def module_for(project: str) -> str:
    """Return a project's module, ``my_project`` for ``my-project``. Raises UsageError."""
    if not _PROJECT.fullmatch(project):
        raise UsageError(
            f"{project!r:.60} cannot be the name of a project and its module: write small letters, "
            "digits and hyphens, such as my-project"
        )
    module = project.replace("-", "_")
    if keyword.iskeyword(module):
        raise UsageError(
            f"{module!r} is a keyword of Python, and cannot be the name of a module: "
            "choose another name for the project"
        )
    if module in sys.stdlib_module_names or _installed(module):
        raise UsageError(
            f"there is a module {module!r} already, which the project's own would hide: "
            "choose another name for the project"
        )
    return module


def _installed(module: str) -> bool:
    # A folder without Python files is found too, but has no origin and hides nothing.
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def stack_for(project: str, module: str) -> str:
    """Return the text of ``docker-compose.yml`` for the topology ``module:topology``."""
    text = (files("tiercel.compose") / "docker-compose.yml").read_text("utf-8")
    for pattern, replacement in _CHANGES:
        text, times = re.subn(pattern, replacement, text)
        if times != 1:
            raise ValueError(f"the package's compose file has {times} places for {pattern}")
    for pattern, replacement in _EVERYWHERE:
        text = re.sub(pattern, replacement.format(module=module), text)
    return _HEADER.format(project=project) + text

"""The command ``new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiercel.workers.project.writer import write_project
from tiercel.workers.terminal import say

commands = typer.Typer()


@commands.command()
def new(
    folder: Annotated[
        Path, typer.Argument(help="a new or empty folder; its name is the project's: my-project")
    ],
) -> None:
    """Write a project: a topology that runs, its tests, and a compose file."""
    names = write_project(folder)
    say(
        f"{folder} is there: a topology, its tests, and a compose file. Go on with\n"
        f"\n"
        f"    cd {folder}\n"
        f"    pytest\n"
        f"    tiercel run {names.module}:topology"
    )

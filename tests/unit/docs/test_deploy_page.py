"""docs/deploy.md: its commands are taken by the real tiercel, and its table is
what the model says.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tiercel.workers.cli.app import loaded

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "deploy.md").read_text()


def commands() -> list[str]:
    """Return what follows the word tiercel in the indented blocks, continued lines joined,
    comments left out.
    """
    lines = "\n".join(line for line in TEXT.splitlines() if line.startswith("    ")).replace(
        "\\\n", " "
    )
    found = re.findall(
        r"(?:^|exec (?:-T )?monitor |\S+=\S+ )\s*tiercel (?!spout\.)([a-z][^\n&<]*)",
        lines,
        re.MULTILINE,
    )
    return [
        re.sub(r"\s#.*", "", command.replace("$(hostname -i)", "10.0.0.1")).strip()
        for command in found
    ]


def test_there_are_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_is_one_that_tiercel_takes(command: str) -> None:
    name, *arguments = shlex.split(command)
    loaded(name).make_context(name, arguments)


def test_the_table_is_what_the_model_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "scaling.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in TEXT

"""Pages for operators: tiercel accepts their commands, and the table of docs/sizing.md matches the
model.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from tests.support.pages import ROOT, commands_on, page
from tiercel.workers.cli.app import loaded

# The least number of commands on each page; fewer means that the parser misses them.
PAGES = {
    "deploy.md": 6,
    "upgrades.md": 3,
    "runbook.md": 5,
    "control.md": 10,
    "compose.md": 5,
    "monitor.md": 6,
}
COMMANDS = [(name, command) for name in PAGES for command in commands_on(name)]


@pytest.mark.parametrize("name", PAGES)
def test_there_are_commands(name: str) -> None:
    assert len(commands_on(name)) >= PAGES[name]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_a_command_of_a_page_is_one_that_tiercel_takes(name: str, command: str) -> None:
    first, *arguments = shlex.split(command)
    group = loaded(first)
    if first == "dead-letters":
        first, *arguments = arguments
        group = group.commands[first]
    group.make_context(first, arguments)


def test_the_table_is_what_the_model_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "scaling.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in page("sizing.md")

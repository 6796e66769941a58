"""The part of docs/tutorial.md that needs no server: files are saved, tests run, commands parse.

tests/acceptance/test_tutorial.py does the rest.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from tests.support.pages import page
from tests.support.tutorial import Tutor, blocks_of, says
from tiercel.workers.cli.app import loaded

PAGE = page("tutorial.md")
COMMANDS = sorted(
    {
        command
        for block in blocks_of(PAGE)
        if block.kind == "sh" and not block.title.startswith("once")
        for command in block.commands
    }
)


@pytest.mark.rest
def test_the_page_without_its_servers(tmp_path):
    (tmp_path / "try").mkdir()
    with Tutor(tmp_path / "try", servers=False) as tutor:
        tutor.read(PAGE)
        assert tutor.typed == [
            "tiercel new my-project",
            "cd my-project",
            *["pytest"] * 4,
        ]
        for words in (("check",), ("format", "--check")):
            ruff = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "100", "."]
            done = subprocess.run(
                ruff, cwd=tutor.folder, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_one_that_there_is(command):
    program, name, *arguments = [*shlex.split(command), ""]
    if program == "tiercel":
        loaded(name).make_context(name, list(filter(None, arguments)))
    else:
        assert program in {"cd", "pytest"}


def test_what_a_command_says_is_compared_line_by_line_and_in_order():
    said = "queue   ready\n│ orders │  0 │\n│ invoices │ 2 │"
    assert says(said, "orders 0\ninvoices 2\n")
    assert says(said, "q… ready\ninv…2\n")
    assert not says(said, "invoices 2\norders 0\n")
    assert not says(said, "orders 1\n")

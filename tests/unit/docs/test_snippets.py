"""On all pages, Python snippets compile and commands exist."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest

from tests.support.pages import ROOT, commands_on
from tiercel.workers.cli.app import COMMANDS

PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))
KNOWN = {name for lines in COMMANDS.values() for name in lines}


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_a_page_is_python(name):
    text = (ROOT / "docs" / name).read_text()
    for block in re.findall(r"^( *```python.*?\n.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        code = textwrap.dedent(textwrap.dedent(block).partition("\n")[2])
        ast.parse(code, filename=name)


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("decisions/")])
def test_a_command_of_a_page_is_one_of_ours(name):
    assert {command.split()[0] for command in commands_on(name)} <= KNOWN

"""Pages of the documentation whose Python is a test module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def commands_on(name: str) -> list[str]:
    """Return the text after the word tiercel in the indented blocks of a page, with continued lines
    joined and without comments.
    """
    lines = "\n".join(line for line in page(name).splitlines() if line.startswith("    ")).replace(
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


def run_tests_of(name: str, folder: Path, *, at_least: int) -> None:
    """Run the tests of all blocks of a page as one module in ``folder``: each must pass, without
    warnings.
    """
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", page(name), re.DOTALL))
    module = folder / "test_page.py"
    module.write_text(code)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            f"--rootdir={folder}",
            str(module),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    written = len(re.findall(r"^def test_", code, re.MULTILINE))
    assert written >= at_least
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{written} passed" in done.stdout

"""docs/events.md lists exactly the names that the code logs."""

import ast
import re
from pathlib import Path

from tiercel.workers.control.contract import State

ROOT = Path(__file__).parents[3]
FOLDERS = ("acker", "compose", "frames", "queues", "spark_jobs", "workers")


def logged():
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "extra"
                and isinstance(node.value, ast.Dict)
            ):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield from names(value)


def names(value):
    if isinstance(value, ast.IfExp):
        yield from (*names(value.body), *names(value.orelse))
    elif isinstance(value, ast.JoinedStr):
        assert ast.unparse(value) == "f'spout_{state.value}'"
        yield from (f"spout_{state.value}" for state in (State.ACTIVE, State.DEACTIVATED))
    else:
        assert isinstance(value, ast.Constant), (
            f"{ast.unparse(value)} is not a name that can be listed"
        )
        yield value.value


def test_the_page_lists_what_is_logged_and_nothing_else():
    rows = [
        line
        for line in (ROOT / "docs/events.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(set(logged())) == listed

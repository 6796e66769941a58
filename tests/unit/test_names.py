"""One name, one meaning: the glossary in CONTRIBUTING.md, as far as a test can check it."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("acker", "compose", "frames", "queues", "spark_jobs", "tiercel", "workers")

# Classes that share a name, with the reason.
SHARED = {}

# Words of the glossary, and the folders whose identifiers may use them.
AT_HOME = {
    "settle": ("frames/", "queues/"),
    "epoch": ("frames/", "queues/"),
    "seal": ("acker/inbox/", "spark_jobs/running/"),
    "outlet": ("queues/publishing/",),
}


def files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def identifiers(tree: ast.AST) -> set[str]:
    """Return the names defined in a file: classes, functions, arguments, variables, attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_of(path))
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in SHARED} == {}
    assert SHARED.keys() <= shared.keys(), "these are not shared any more: take them off the list"


@pytest.mark.parametrize("word", AT_HOME)
def test_a_word_of_the_glossary_stays_where_it_has_its_meaning(word: str) -> None:
    strays = {
        f"{name_of(path)}: {name}"
        for path in files()
        if not name_of(path).startswith(AT_HOME[word])
        for name in identifiers(ast.parse(path.read_text()))
        if word in name.lower()
    }
    assert strays == set()

"""docs/semantics.md names a test for each guarantee, and these tests exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "semantics.md").read_text()
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
TESTS = sorted(
    {(path, words) for words, path in LINK.findall(PAGE) if path.startswith("../tests/")}
)


@pytest.mark.parametrize(("path", "words"), TESTS, ids=[words for _, words in TESTS])
def test_a_test_that_is_linked_is_there(path: str, words: str) -> None:
    name = f"test_{words.replace(' ', '_')}"
    assert re.search(rf"^def {name}\(", (ROOT / "docs" / path).read_text(), re.MULTILINE)


def test_every_row_has_a_test() -> None:
    rows = [
        line.strip("| \n").split(" | ")
        for line in PAGE.splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    assert len(rows) > 60
    assert [row[0] for row in rows if "](../tests/" not in row[-1] and row[-1] != "test"] == []


def test_every_test_of_the_one_suite_is_on_the_page() -> None:
    suite = {
        (f"../tests/semantics/{path.name}", name.replace("_", " "))
        for path in (ROOT / "tests" / "semantics").glob("test_*.py")
        for name in re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)
    }
    assert sorted(suite - set(TESTS)) == []

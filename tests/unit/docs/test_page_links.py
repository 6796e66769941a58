"""Every file, heading and test named by the README and the pages in docs exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

# `tests/unit/test_x.py::test_y`, `tests/unit/test_x.py`, and `::test_z`, which means the file named
# before it.
TEST = re.compile(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`")

# `acker/ledger.py`: a file of the package.
CODE = re.compile(r"`((?:acker|compose|frames|queues|spark_jobs|workers)/[\w/]+\.(?:py|lua))`")


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _named_tests(text: str) -> list[tuple[str, str]]:
    named = []
    path = ""
    for match in TEST.finditer(text):
        path = match[1] or path
        if match[1] or match[2]:
            named.append((path, match[2] or ""))
    return named


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (
            anchor and anchor not in map(_anchor, HEADING.findall(file.read_text()))
        ):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    missing = []
    for path, name in _named_tests(page.read_text()):
        file = ROOT / path
        if not file.is_file():
            missing.append(path)
        elif name and not re.search(rf"^ *(async )?def {name}\(", file.read_text(), re.MULTILINE):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_every_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((folder / "README.md").read_text()))
    assert {page.name for page in folder.glob("*.md")} - {"README.md"} == listed


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_file_of_the_package_that_a_page_names_is_there(page: Path) -> None:
    named = set(CODE.findall(page.read_text()))
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []

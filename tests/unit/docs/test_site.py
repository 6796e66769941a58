"""The site has every page in the order of its navigation, and every public name."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tiercel
from tests.support.pages import ROOT
from tiercel import dataframe, testing

LAYOUT = runpy.run_path(str(ROOT / "docs/layout.py"))
SITE = tomllib.loads((ROOT / "docs/zensical.toml").read_text())["project"]


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "docs/layout.py", folder / "site"], check=True)
    return folder / "site"


def pages_in(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in pages_in(entry)]


def test_every_page_is_in_the_navigation_once_and_decisions_by_their_list(laid_out):
    pages = {path.relative_to(laid_out / "pages").as_posix() for path in laid_out.rglob("*.md")}
    others = {page for page in pages if page.startswith("decisions/")} - {"decisions/index.md"}
    assert sorted(pages_in(SITE["nav"])) == sorted(pages - others)


def test_the_first_page_leads_to_every_page_for_users():
    links = set(re.findall(r"\]\(([\w/.-]+)\)", (ROOT / "docs/README.md").read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= links


@pytest.mark.parametrize(
    ("target", "place", "found"),
    [
        ("state.md#keys", "docs/api/bolts.md", "../state.md#keys"),
        ("../state.md", "docs/decisions/undo-log.md", "../state.md"),
        ("README.md", "docs/decisions/undo-log.md", "index.md"),
        ("images/top.png", "docs/monitor.md", "images/top.png"),
        ("docs/state.md", "CHANGELOG.md", "state.md"),
        ("#anchor", "docs/state.md", "#anchor"),
        ("../LICENSE", "docs/state.md", f"{LAYOUT['REPOSITORY']}/LICENSE"),
        ("../README.md", "docs/state.md", f"{LAYOUT['REPOSITORY']}/README.md"),
        ("https://example.com/a#b", "docs/state.md", "https://example.com/a#b"),
    ],
)
def test_links_to_pages_stay_on_the_site_and_others_lead_to_the_repository(target, place, found):
    known = {**LAYOUT["pages"](), "docs/api/bolts.md": "api/bolts.md"}
    if target == "state.md#keys":
        target = "../state.md#keys"
    assert LAYOUT["on_the_site"](target, place, known) == found


def test_a_link_that_leads_nowhere_ends_the_build():
    with pytest.raises(SystemExit, match=r"docs/state\.md: a link leads nowhere: gone\.md"):
        LAYOUT["on_the_site"]("gone.md", "docs/state.md", LAYOUT["pages"]())


def test_code_keeps_its_brackets():
    text = "[a](state.md)\n\n    f[x](state.md)\n\n```\n[x](gone.md)\n```\n"
    known = LAYOUT["pages"]()
    assert LAYOUT["laid_out"](text, "docs/testing.md", known) == text


@pytest.mark.parametrize(
    ("package", "names"),
    [(each, each.__all__) for each in (tiercel, dataframe, testing)],
)
def test_the_reference_has_every_public_name_once(package, names):
    text = "".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))
    found = re.findall(rf"^::: {re.escape(package.__name__)}\.(\w+)$", text, re.MULTILINE)
    assert sorted(found) == sorted(names)


def test_the_package_that_is_read_has_no_links(laid_out):
    code = laid_out / "code/tiercel"
    assert (code / "spark_jobs/bolts/bolt.py").is_file()
    assert not [path for path in code.iterdir() if path.is_symlink()]


def test_nothing_is_loaded_from_other_hosts():
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css", "site_url"} & SITE.keys()

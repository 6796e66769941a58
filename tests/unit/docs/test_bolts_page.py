"""docs/bolts.md: its topology runs, and every kind of bolt and every example is in its tables."""

from __future__ import annotations

import re

import tiercel
from tests.support.pages import ROOT, page
from tiercel.testing import LocalCluster

PAGE = page("bolts.md")


def test_the_topology_on_the_page_runs(capsys):
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"__name__": "page"}
    exec(compile(code, "docs/bolts.md", "exec"), names)
    with LocalCluster(names["topology"]()) as cluster:
        cluster.feed_body("a topology of distributed bolts")
        cluster.run_until_idle()
        assert cluster.acked("sentences") == [1]
        assert len(cluster.read_tuples("split")) == 5
    assert capsys.readouterr().out.split() == ["distributed"]


def test_every_kind_of_bolt_is_in_the_table():
    kinds = [name for name in tiercel.__all__ if name.endswith("Bolt")]
    assert len(kinds) == 8
    assert [name for name in kinds if not re.search(rf"^\| \[?`{name}`", PAGE, re.MULTILINE)] == []


def test_every_example_is_in_the_table():
    examples = {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"\]\(\.\./examples/(\w+\.py)\)", PAGE)) == examples

"""docs/state.md: its bolt behaves as the page says, and its table is complete."""

import re
from pathlib import Path

from tiercel import KeyValueState, TopologyBuilder
from tiercel.testing import FeederSpout, LocalCluster

PAGE = (Path(__file__).parents[3] / "docs" / "state.md").read_text()


def test_the_bolt_on_the_page_runs():
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"__name__": "page"}
    exec(compile(code, "docs/state.md", "exec"), names)
    builder = TopologyBuilder("visits")
    feeder = FeederSpout(fields="user string, page string")
    builder.set_spout("pages", feeder)
    builder.set_bolt("visits", names["Visits"](), parallelism=2).fields_grouping("pages", "user")
    with LocalCluster(builder.build()) as cluster:
        for page in ("start", "search"):
            feeder.feed(["ann", page])
            cluster.run_until_idle()
        assert cluster.read_tuples("visits") == [["ann", 1, "start"], ["ann", 2, "start"]]
        assert cluster.state("visits") == {"ann": 2, ("first page", "ann"): "start"}


def test_every_call_is_in_the_table():
    calls = [
        name
        for name in ("get", "put", "delete", "increment", "iterate")
        if hasattr(KeyValueState, name)
    ]
    assert len(calls) == 5
    assert [name for name in calls if f"| `state.{name}(" not in PAGE] == []
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (Path(__file__).parents[3] / "docs" / link).exists(), link

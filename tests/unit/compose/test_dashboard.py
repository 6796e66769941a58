"""The Grafana dashboard keeps topologies apart and counts no queue twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

DASHBOARD = json.loads((Path(__file__).parents[3] / "compose/grafana-dashboard.json").read_text())
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
# Several topologies share these metrics.
SHARED = {"queue", "server"}


def test_figures_of_several_topologies_are_not_added_up():
    for target in TARGETS:
        groups = [
            set(group.split(", "))
            for group in re.findall(r"(?:sum|max|min|count) by \(([^)]*)\)", target["expr"])
        ]
        assert all("topology" in group or group <= SHARED for group in groups), target["expr"]
        if "tiercel_queue_" in target["expr"]:
            assert groups == [{"queue"}], target["expr"]
            assert target["expr"].startswith("max by"), target["expr"]


def test_a_line_is_named_by_all_that_tells_it_from_others():
    for target in TARGETS:
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        found = re.search(r"by \(([^)]*)\)", target["expr"])
        if found:
            assert set(found[1].split(", ")) - {"le"} == shown, target["expr"]
        else:
            assert "topology" in shown, target["expr"]


def test_alerts_are_marked_in_all_panels():
    [alerts] = DASHBOARD["annotations"]["list"]
    assert alerts["enable"]
    assert alerts["expr"] == 'ALERTS{alertname=~"Tiercel.*",alertstate="firing"}'

"""Values of the Helm chart: each is on its page with its default, and the schema accepts it.

Helm's output: tests/acceptance/test_chart.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml

from tests.support.helm import CHART
from tests.support.pages import page

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Each of these objects is one row of the page.
WHOLE = ("resources", "masterResources")
# Lists that the page describes in words.
TOLD = ("topologies", "networkPolicy.monitorFrom")


def each_value(values: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in WHOLE:
            yield from each_value(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def each_key(schema: dict[str, Any], place: str = "") -> Iterator[str]:
    for key, below in schema["properties"].items():
        if below.get("properties") and key not in {*WHOLE, "keys", "parts"}:
            yield from each_key(below, f"{place}{key}.")
        else:
            yield f"{place}{key}"


def test_the_page_has_each_value_with_its_default() -> None:
    table = page("chart.md").partition("## A topology")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \|", table, re.MULTILINE))
    for name, value in each_value(VALUES):
        shown = rows.pop(name)
        if name not in TOLD:
            assert shown.strip("`") == (
                "" if value in ("", [], {})
                else value if isinstance(value, str) else json.dumps(value)
            ), name  # fmt: skip
    assert not rows


def topology_keys() -> set[str]:
    return set(each_key(SCHEMA["properties"]["topologies"]["items"]))


def test_the_page_has_each_key_of_a_topology() -> None:
    table = page("chart.md").partition("## A topology")[2].partition("## Addresses")[0]
    listed = re.findall(r"`([\w.]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert set(listed) == topology_keys()


def test_the_schema_knows_exactly_the_values_and_takes_the_defaults() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    assert set(each_key(SCHEMA)) - {"global"} == {name for name, _ in each_value(VALUES)}


def test_the_alerts_of_the_chart_are_those_of_the_compose_file() -> None:
    assert (CHART / "alerts.yml").samefile(CHART.parent / "alerts.yml")


def test_the_chart_has_the_version_of_tiercel() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (CHART.parents[1] / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project
    assert chart["version"] == chart["appVersion"]

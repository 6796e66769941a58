"""docs/runbook.md has an entry for each alert, and each alert links to its entry."""

from __future__ import annotations

import re

import yaml

from tests.support.pages import ROOT, page

RULES = [
    rule
    for group in yaml.safe_load((ROOT / "compose/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
ENTRIES = dict(
    re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page("runbook.md"), re.DOTALL | re.MULTILINE)
)


def test_each_alert_has_an_entry_and_each_entry_an_alert():
    assert len(RULES) >= 19
    assert list(ENTRIES) == [rule["alert"] for rule in RULES]


def test_an_entry_says_what_it_means_and_what_to_do_in_order():
    for alert, text in ENTRIES.items():
        assert re.match(r"\n[A-Z]", text), alert
        assert len(re.findall(r"^\d\. ", text, re.MULTILINE)) >= 2, alert


def test_each_alert_leads_to_its_entry():
    for rule in RULES:
        url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert url.endswith("/docs/runbook.md"), rule["alert"]
        assert anchor == rule["alert"].lower()

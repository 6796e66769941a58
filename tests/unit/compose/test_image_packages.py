"""The image has exactly the packages that tiercel and its monitor need."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
# Needed by redis on Python before 3.11.3.
ALSO = {"async-timeout"}


def needed(requirements: list[str]) -> set[str]:
    """Return these packages and all their dependencies, by installed metadata."""
    found: dict[str, set[str]] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name.lower())
        extras = {"", *requirement.extras} - found.setdefault(name, set())
        found[name] |= extras
        others = map(Requirement, requires(name) or ()) if extras else ()
        waiting += [
            each
            for each in others
            if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras)
        ]
    return set(found)


def test_the_image_has_what_tiercel_and_its_monitor_need_and_nothing_that_only_tests_do():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = (ROOT / "compose/packages.txt").read_text().split()
    assert listed == sorted(
        needed(project["dependencies"] + extras["monitor"] + extras["otel"]) | ALSO
    )


def test_each_is_pinned():
    pinned = set(
        re.findall(r"^([a-z0-9.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    assert set((ROOT / "compose/packages.txt").read_text().split()) <= pinned

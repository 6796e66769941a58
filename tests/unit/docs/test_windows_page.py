"""docs/windows.md is a test module that passes; its pictures are those that the build draws."""

from __future__ import annotations

import re
import runpy

from tests.support.pages import ROOT, page, run_tests_of
from tiercel import TupleWindow, WindowedBolt

PICTURES = runpy.run_path(str(ROOT / "docs/pictures.py"))


def test_the_tests_on_the_page_pass(tmp_path):
    run_tests_of("windows.md", tmp_path, at_least=3)


def test_each_picture_is_the_one_that_the_build_draws_and_on_the_page():
    """If it is not: ``python docs/pictures.py docs/images``."""
    for name, picture in PICTURES["PICTURES"].items():
        assert (ROOT / "docs/images" / name).read_text() == picture()
    shown = re.findall(r"\]\(images/(windows-\w+\.svg)\)", page("windows.md"))
    assert sorted(shown) == sorted(PICTURES["PICTURES"])


def test_the_late_tuples_of_the_picture_are_those_whose_window_had_closed():
    late = PICTURES["late"](PICTURES["ARRIVALS"], PICTURES["LAG"], PICTURES["TUMBLING"])
    assert [time for time, is_late in zip(PICTURES["ARRIVALS"], late, strict=True) if is_late] == [
        8,
        28,
    ]


def test_everything_that_a_windowed_bolt_may_set_is_on_the_page():
    settings = [name for name in WindowedBolt.__annotations__ if not name.startswith("_")]
    parts = [f"window.{name}" for name in TupleWindow.__annotations__]
    assert {"timestamp_field", "window.key"} <= {*settings, *parts}
    text = page("windows.md")
    assert [name for name in [*settings, *parts] if f"`{name}" not in text] == []

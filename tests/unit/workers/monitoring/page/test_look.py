"""Scripts and style sheet of the page: small, self-hosted, and unable to create markup."""

import re
from pathlib import Path

import pytest

from tiercel.workers.monitoring.page import view

FILES = sorted(Path(view.__file__).with_name("look").iterdir())
# Each of these turns a text into markup or code, or calls another host.
WAYS = re.compile(
    r"innerHTML|outerHTML|insertAdjacent|v-html|document\.write|eval\(|Function\("
    r"|https?:|@import|url\((?!#)"
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_text_becomes_no_markup_and_no_other_host_is_asked(file):
    assert not WAYS.search(file.read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_short_enough_to_be_read(file):
    assert len(file.read_text().splitlines()) < 300


def test_there_is_a_colour_for_light_and_for_dark():
    text = view.STYLE.read_text()
    light, dark = (
        set(re.findall(r"(--[\w-]+):", text[text.index(f"\n{begin} {{") :].partition("}")[0]))
        for begin in ("body", "body.body--dark")
    )
    assert len(light) > 20
    assert light == dark

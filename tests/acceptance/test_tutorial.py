"""docs/tutorial.md from top to bottom, with a newcomer's commands, on separate servers."""

from __future__ import annotations

import pytest

from tests.support.pages import page
from tests.support.tutorial import Tutor

pytestmark = pytest.mark.timeout(900)


def test_the_tutorial_from_an_empty_folder_to_a_topology_of_ones_own(tmp_path):
    (tmp_path / "try").mkdir()
    with Tutor(tmp_path / "try", servers=True) as tutor:
        tutor.read(page("tutorial.md"))
        assert "KeyError: 'bob'" in tutor.log(), "the log has the traceback too"
        assert sum(command.startswith("tiercel run") for command in tutor.typed) == 2

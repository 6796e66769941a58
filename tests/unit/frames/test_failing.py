"""Rows name the messages that fail."""

from __future__ import annotations

import pytest

from tiercel.frames.errors import FramesError
from tiercel.frames.post import _by_reader

READER = "0123456789abcdef"


def test_a_message_of_which_there_are_several_rows_fails_once():
    """For example after ``explode``; the failure is also counted once."""
    rows = [(f"{READER}.0.1.7", "first"), (f"{READER}.0.1.8", None), (f"{READER}.0.1.7", "second")]
    assert sorted(_by_reader(rows)[READER]) == [[0, 1, 7, "first"], [0, 1, 8, ""]]


@pytest.mark.parametrize("name", [None, "", f"{READER}.0.1", ".0.0.1"])
def test_what_names_no_message_is_an_error(name):
    with pytest.raises(FramesError, match="names no message that a stream has read"):
        _by_reader([(name, "no")])

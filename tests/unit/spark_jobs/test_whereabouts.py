"""The record a process leaves about where it runs."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tiercel.spark_jobs.whereabouts import Whereabouts, of_this_process, unpacked

SINCE = datetime(2024, 1, 1, tzinfo=UTC)


def test_it_travels_as_one_word():
    place = Whereabouts(host="node-3.example", pid=17, since=SINCE)
    assert place.packed() == "node-3.example/17/1704067200"
    assert unpacked(place.packed()) == place
    coded = replace(place, code="1b7c09d4")
    assert coded.packed() == "node-3.example/17/1704067200/1b7c09d4"
    assert unpacked(coded.packed()) == coded


def test_this_process_started_by_now():
    place = of_this_process()
    assert unpacked(place.packed()).pid == place.pid
    assert (datetime.now(UTC) - place.since).total_seconds() < 60


def test_a_name_that_is_no_word_is_made_one():
    place = Whereabouts(host="a b\x1b[2J" + "x" * 500, pid=1, since=SINCE)
    word = place.packed()
    assert word.split() == [word]
    assert unpacked(word).host.startswith("a_b__2Jxxx")


@pytest.mark.parametrize(
    "word", ["", "-", "of", "a/b/c", "a/1/2/3x", "a/1/99999999999999", "\xff/1/2"]
)
def test_what_another_version_said_is_nothing(word):
    assert unpacked(word) is None

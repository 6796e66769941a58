"""docs/one-message.md names the nine steps of a message; the code takes and logs them in order."""

from __future__ import annotations

import logging
import re
from itertools import pairwise
from pathlib import Path

from tests.support.trace import OneMessage
from tiercel.examples import word_count

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| (\d) \| .* \| (`.+`) \|$", re.MULTILINE)
PLACE = re.compile(r"`([\w/]+\.py)`, `([\w.]+)`")


def steps_of_the_page():
    page = (ROOT / "docs/one-message.md").read_text()
    return {int(number): PLACE.findall(places) for number, places in ROW.findall(page)}


def test_each_step_names_places_that_a_message_enters_in_this_order():
    steps = steps_of_the_page()
    assert list(steps) == list(range(1, 10))
    way = OneMessage(word_count.topology()).way(b"word")
    first = {number: min(way.calls.index(place) for place in steps[number]) for number in steps}
    assert all(first[one] < first[other] for one, other in pairwise(steps))
    assert {place for places in steps.values() for place in places} <= set(way.calls)


def test_one_message_is_followed_in_the_log_from_its_delivery_to_its_ack(caplog):
    one = OneMessage(word_count.topology())
    with caplog.at_level(logging.DEBUG, logger="tiercel"):
        one.way(b"word")
    lines = [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "event", "") == "message_step"
    ]
    root = re.search(r"is root (\d+)", "\n".join(lines))
    assert root is not None
    known_by = re.compile(rf"\bmessage 1 of channel|\broot {root[1]}\b|\btag 1\b")
    assert all(known_by.search(line) for line in lines)
    assert [int(line[0]) for line in lines] == [1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9]


def test_nothing_is_logged_of_a_message_at_info(caplog):
    one = OneMessage(word_count.topology())
    one.way(b"word")
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tiercel"):
        one.way(b"word")
    assert caplog.records == []

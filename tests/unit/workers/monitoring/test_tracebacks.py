"""The traceback that belongs to an error of the list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tiercel.acker.metrics.traces import KnownError, TraceReport
from tiercel.workers.monitoring.tracebacks import known_for, told

THEN = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)


def known(component="enrich", kind="KeyError", place="a.py:1", count=3) -> KnownError:
    first = TraceReport(
        at=THEN,
        component=component,
        task=7,
        kind=kind,
        place=place,
        reason=f"{kind}: 'x' ({place})",
        text="Traceback",
    )
    return KnownError(first=first, last=THEN + timedelta(seconds=61), count=count)


DEEP = known()
OTHER_LINE = known(place="a.py:10")
OTHER_KIND = known(kind="OSError")
OTHER_BOLT = known(component="count")
NOWHERE = known(kind="TypeError", place="")
ALL = [OTHER_LINE, OTHER_KIND, OTHER_BOLT, NOWHERE, DEEP]


@pytest.mark.parametrize(
    ("component", "message", "expected"),
    [
        ("enrich", "KeyError: 'x' (a.py:1)", DEEP),
        ("enrich", "flush: KeyError: 'x' (a.py:1)", DEEP),
        ("orders", "enrich[7]: KeyError: 'y' (a.py:1)", DEEP),
        ("orders", "count[9]: KeyError: 'y' (a.py:1)", OTHER_BOLT),
        ("enrich", "KeyError: 'x' (a.py:10)", OTHER_LINE),
        ("enrich", "OSError: away (a.py:1)", OTHER_KIND),
        ("enrich", "TypeError: odd", NOWHERE),
        ("enrich", "failed by the bolt", None),
        ("orders", "timeout", None),
        ("unknown", "KeyError: 'x' (a.py:1)", None),
    ],
)
def test_component_exception_and_line_say_which(component, message, expected):
    assert known_for(ALL, component, message) is expected


def test_one_line_says_how_often_and_when():
    assert told(DEEP).startswith("enrich: KeyError: 'x' (a.py:1) · 3 times, 2024-02-29 ")
    assert told(DEEP).endswith(" · the first one, in task 7")
    assert " · once, 2024-02-29 " in told(known(count=1))

"""Errors grouped by reason."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tiercel.acker.metrics.contract import ErrorReport, KnownError, TraceReport
from tiercel.workers.monitoring.overview import each_once, grouped, known_for
from tiercel.workers.monitoring.tables import heading_of

RAISED_AT = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
THEN = datetime(2024, 1, 1, tzinfo=UTC)
BOLTS = {"validate", "enrich"}


def error(component, message, seconds=0):
    at = THEN + timedelta(seconds=seconds)
    return ErrorReport(at=at, component=component, task=1, message=message)


def test_reasons_that_differ_in_numbers_and_quoted_texts_alone_are_one():
    errors = [
        error("validate", "ValueError: order 2004: amount None", 9),
        error("enrich", "KeyError: 'deep'", 7),
        error("validate", "ValueError: order 2001: amount None", 5),
        error("enrich", "KeyError: 'other'", 3),
        error("validate", "ValueError: order 2003: amount None", 1),
    ]
    first, second = grouped(errors, BOLTS)
    assert (first.component, first.count, first.exact) == ("validate", 3, False)
    assert first.reason == "ValueError: order 2004: amount None", "that of the last one"
    assert (first.first, first.last) == (THEN + timedelta(seconds=1), THEN + timedelta(seconds=9))
    assert (second.component, second.reason, second.count) == ("enrich", "KeyError: 'deep'", 2)


def test_what_a_bolt_raises_is_one_error_although_its_spout_reports_it_too():
    errors = [
        error("orders", "validate[3]: ValueError: order 2001: amount None", 2),
        error("validate", "ValueError: order 2001: amount None", 1),
    ]
    [fault] = grouped(errors, BOLTS)
    assert (fault.component, fault.count) == ("validate", 1)
    assert fault.last == THEN + timedelta(seconds=2)


def test_a_failure_that_bolt_and_spout_report_is_one_and_names_the_message():
    reported = [
        replace(error("orders", "validate[1]: ValueError: 9", 9), about="message o-9 of queue q"),
        error("validate", "ValueError: 9", 8),
        error("validate", "ValueError: 7", 7),
        replace(error("orders", "validate[1]: ValueError: 7", 6), about="message o-7 of queue q"),
        replace(error("orders", "validate[1]: ValueError: 7", 5), about="message o-5 of queue q"),
        replace(error("orders", "timeout", 4), about="message o-4 of queue q"),
        error("orders", "nobolt[7]: gone", 3),
    ]
    found = each_once(reported, BOLTS)
    assert [(each.component, each.message, each.about) for each in found] == [
        ("validate", "ValueError: 9", "message o-9 of queue q"),
        ("validate", "ValueError: 7", "message o-7 of queue q"),
        ("validate", "ValueError: 7", "message o-5 of queue q"),
        ("orders", "timeout", "message o-4 of queue q"),
        ("orders", "nobolt[7]: gone", ""),
    ]
    assert [each.at for each in found] == sorted([each.at for each in found], reverse=True)


def test_what_only_the_spout_has_reported_is_still_the_bolts():
    [fault] = grouped([error("orders", "enrich[7]: gone")], BOLTS)
    assert (fault.component, fault.reason, fault.count) == ("enrich", "gone", 1)


def test_a_reason_that_only_looks_like_a_bolts_stays_as_it_is():
    [fault] = grouped([error("orders", "nobolt[7]: gone")], BOLTS)
    assert (fault.component, fault.reason) == ("orders", "nobolt[7]: gone")


def test_errors_of_one_line_of_code_are_counted_exactly_and_since_the_first_of_all():
    report = TraceReport(
        at=THEN - timedelta(hours=1),
        component="validate",
        task=3,
        kind="ValueError",
        place="orders.py:12",
        reason="ValueError: order 1 (orders.py:12)",
        text="Traceback",
    )
    known = KnownError(first=report, last=THEN, count=64)
    errors = [
        error("validate", "ValueError: no amount (orders.py:12)", 5),
        error("validate", "ValueError: order 7 (orders.py:12)", 4),
    ]
    [fault] = grouped(errors, BOLTS, [known])
    assert (fault.count, fault.exact, fault.first) == (64, True, report.at)
    assert fault.last == THEN + timedelta(seconds=5)


def known(component="enrich", kind="KeyError", place="a.py:1", count=3) -> KnownError:
    first = TraceReport(
        at=RAISED_AT,
        component=component,
        task=7,
        kind=kind,
        place=place,
        reason=f"{kind}: 'x' ({place})",
        text="Traceback",
    )
    return KnownError(first=first, last=RAISED_AT + timedelta(seconds=61), count=count)


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
    assert heading_of(DEEP).startswith("enrich: KeyError: 'x' (a.py:1) · 3 times, 2024-02-29 ")
    assert heading_of(DEEP).endswith(" · the first one, in task 7")
    assert " · once, 2024-02-29 " in heading_of(known(count=1))

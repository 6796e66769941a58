"""The charts of the page, as lines."""

from datetime import UTC, datetime, timedelta

from tiercel.workers.monitoring.history import Sample
from tiercel.workers.monitoring.page.lines import CHARTS, LINES, POINTS, chart_of

KINDS = {kind.key: kind for kind in CHARTS}
THEN = datetime(2024, 1, 1, tzinfo=UTC)


def lines(key, samples):
    return {line["name"]: line["values"] for line in chart_of(KINDS[key], samples)["lines"]}


def test_a_chart_has_a_gap_where_nothing_is_known():
    samples = [
        Sample(at=THEN, queues={"q ready": 1}),
        Sample(at=THEN, queues={"q ready": None, "other ready": 2}),
    ]
    assert lines("queues", samples) == {"q ready": [1, None], "other ready": [None, 2]}


def test_without_a_look_there_is_no_line():
    for kind in CHARTS:
        assert chart_of(kind, ()) == {"times": [], "lines": []}


def test_of_many_samples_few_points_are_sent_and_no_peak_is_lost():
    samples = [
        Sample(at=THEN + timedelta(seconds=at), latency={"p99": 999.0 if at == 77 else 1.0})
        for at in range(660)
    ]
    chart = chart_of(KINDS["latency"], samples)
    assert len(chart["times"]) == len(chart["lines"][0]["values"]) <= POINTS
    assert max(chart["lines"][0]["values"]) == 999.0
    assert chart["times"][-1] == round(samples[-1].at.timestamp() * 1000)


def test_of_many_lines_the_highest_are_shown():
    samples = [Sample(at=THEN, queues={f"q{at} ready": at for at in range(50)})]
    assert list(lines("queues", samples)) == [f"q{at} ready" for at in range(50 - LINES, 50)]


def test_failures_have_one_colour_and_no_other_line_of_the_chart_has_it():
    samples = [Sample(at=THEN, throughput={"acked": 1.0, "failed": 0.0})]
    tones = [line["tone"] for line in chart_of(KINDS["throughput"], samples)["lines"]]
    assert len(set(tones)) == 2

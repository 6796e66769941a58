"""Memory of the chart of depths."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tiercel.workers.monitoring.history import FINE, KEPT, STEP, DepthSample, History

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
LOOK = timedelta(seconds=2)


def filled(span, depth_at):
    history = History(LOOK)
    for number in range(span // LOOK):
        history.add(DepthSample(at=BEGAN + number * LOOK, depths={"q": depth_at(number * LOOK)}))
    return history.samples()


def test_ten_minutes_are_kept_as_they_were_seen():
    samples = filled(FINE, lambda since: since.seconds)
    assert [sample.depths["q"] for sample in samples] == list(range(0, FINE.seconds, LOOK.seconds))


def test_three_hours_are_kept_in_steps_and_no_more_than_that():
    samples = filled(2 * KEPT, lambda _: 1)
    assert len(samples) <= KEPT // STEP + FINE // LOOK
    assert KEPT - STEP <= samples[-1].at - samples[0].at <= KEPT
    moments = [sample.at for sample in samples]
    assert moments == sorted(set(moments))
    assert max(late - early for early, late in pairwise(moments)) <= STEP


def test_a_peak_that_is_over_long_ago_is_still_as_high():
    peak = timedelta(minutes=31, seconds=44)
    samples = filled(timedelta(hours=2), lambda since: 999 if since == peak else 1)
    [highest] = [sample for sample in samples if sample.depths["q"] == 999]
    assert abs(highest.at - (BEGAN + peak)) < STEP


def test_a_step_is_unknown_only_if_nobody_knew_in_all_of_it():
    history = History(LOOK)
    for number, depth in enumerate([None, 7, None]):
        history.add(DepthSample(at=BEGAN + number * LOOK, depths={"q": depth}))
    for number in range(FINE // LOOK):
        history.add(DepthSample(at=BEGAN + STEP + number * LOOK, depths={"q": None, "new": 0}))
    old, *fine = history.samples()
    assert old.depths == {"q": 7}
    assert {sample.depths["q"] for sample in fine} == {None}

"""The memory behind the charts."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from tiercel.acker.metrics.contract import Window
from tiercel.workers.monitoring.findings import ServerProblems
from tiercel.workers.monitoring.sampler import FINE, KEPT, STEP, History, Sample, Sampler
from tiercel.workers.monitoring.watcher import Look

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
LOOK = timedelta(seconds=2)


def filled(span, depth_at):
    history = History(LOOK)
    for number in range(span // LOOK):
        history.add(Sample(at=BEGAN + number * LOOK, inside={"q": depth_at(number * LOOK)}))
    return history.samples()


def test_ten_minutes_are_kept_as_they_were_seen():
    samples = filled(FINE, lambda since: since.seconds)
    assert [sample.inside["q"] for sample in samples] == list(range(0, FINE.seconds, LOOK.seconds))


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
    [highest] = [sample for sample in samples if sample.inside["q"] == 999]
    assert abs(highest.at - (BEGAN + peak)) < STEP


def test_a_step_is_unknown_only_if_nobody_knew_in_all_of_it():
    history = History(LOOK)
    for number, depth in enumerate([None, 7, None]):
        history.add(Sample(at=BEGAN + number * LOOK, inside={"q": depth}))
    for number in range(FINE // LOOK):
        history.add(Sample(at=BEGAN + STEP + number * LOOK, inside={"q": None, "new": 0}))
    old, *fine = history.samples()
    assert old.inside == {"q": 7}
    assert {sample.inside["q"] for sample in fine} == {None}


def test_each_kind_of_figure_is_remembered_by_its_highest():
    history = History(LOOK)
    for number, value in enumerate((1.5, 9.0, 2.0)):
        figures = {"x": value}
        history.add(
            Sample(
                at=BEGAN + number * LOOK,
                queues=figures,
                inside=figures,
                throughput=figures,
                latency=figures,
            )
        )
    for number in range(FINE // LOOK):
        history.add(Sample(at=BEGAN + STEP + number * LOOK))
    step = history.samples()[0]
    assert step.queues == step.inside == step.throughput == step.latency == {"x": 9.0}
    assert history.fine()[0].at == BEGAN + STEP


class Outage:
    """A watcher that knows no topology, and for which a server is away at some of its looks."""

    def __init__(self, server, problems):
        self.server = server
        self.problems = iter(problems)

    def look(self, name, window):
        return Look(at=BEGAN, problems=ServerProblems(**{self.server: next(self.problems)}))


@pytest.mark.parametrize(
    ("server", "events"),
    [("redis", ["redis_away", "redis_back"]), ("rabbitmq", ["broker_lost", "broker_back"])],
)
def test_an_outage_is_a_line_when_it_begins_and_one_when_it_ends(caplog, server, events):
    caplog.set_level("INFO")
    problems = [None, "it does not answer (1)", "it does not answer (2)", None, None]
    sampler = Sampler(Outage(server, problems))
    for _ in problems:
        sampler._round()
    assert [record.event for record in caplog.records] == events


class Forgetful:
    """A watcher whose topologies the test names."""

    known = ("words",)

    def look(self, name, window):
        return Look(at=BEGAN, topologies=self.known, problems=ServerProblems())


def test_a_topology_that_is_forgotten_is_not_shown_as_it_was():
    watcher = Forgetful()
    sampler = Sampler(watcher)
    sampler._round()
    assert sampler.look("words", Window.TEN_MINUTES).topologies == ("words",)
    assert len(sampler.samples("words")) == 1
    watcher.known = ()
    sampler._round()
    assert sampler.look("words", Window.TEN_MINUTES).topologies == ()
    assert sampler.samples("words") == ()

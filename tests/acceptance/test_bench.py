"""The benchmark at small scale: the same processes and servers, a few thousand messages."""

import pytest
import redis

from bench import contest, inbox, latency, throughput
from bench.rig import BenchError, clear, running, servers
from bench.scaling import costs_of
from bench.slow.amount import RAISING, Slow
from bench.slow.beside import beside
from bench.slow.curve import curve
from bench.slow.drain import drain
from bench.slow.uneven import arrivals, half_speed, uneven
from bench.standby import measure as measure_standby

pytestmark = [pytest.mark.timeout(900), pytest.mark.embedded]


@pytest.fixture(scope="module")
def settings():
    with servers() as found:
        yield found


def test_a_topology_is_measured_at_a_steady_rate_and_with_a_full_queue(settings):
    with running("basic", settings, timed=True) as topology:
        topology.warm_up()
        found = latency.measure(topology, 100, 2.0)
        before = topology.reading.last().acked
        drained = throughput.drain(topology, "basic", 3_000)
        assert topology.reading.last().acked == before + 3_000
    # The first five seconds do not count.
    assert 195 <= found.messages <= 200
    assert 0 < found.p50_ms <= found.p99_ms <= found.p999_ms
    assert drained.whole_per_s > 0
    assert drained.steady_per_s > 0
    assert {"Spark's Python", "spout workers", "RabbitMQ"} <= set(drained.cpu_s)


@pytest.mark.parametrize("what", ["bare", "inline"])
def test_a_consumer_without_a_framework_empties_its_queue(settings, what):
    drained = contest.consumer(what, settings, 2_000)
    assert drained.sentences == 2_000
    assert drained.whole_per_s > 0
    assert drained.cpu_s["peer"] > 0


def test_the_start_and_the_idle_processes_are_measured(settings):
    found = measure_standby(settings, 2.0)
    assert found.first_ack_s > 0
    # In two seconds an idle process may use less CPU than its clock can resolve, but not all of
    # them.
    assert found.idle_cpu_percent
    assert found.idle_percent == pytest.approx(sum(found.idle_cpu_percent.values()))


def test_the_consumer_that_only_acks_has_a_latency_too(settings):
    found = latency.measure_bare(settings, 100, 2.0)
    assert 195 <= found.messages <= 200
    assert 0 < found.p50_ms <= found.p99_ms


@pytest.mark.parametrize("raising", [pytest.param(0, marks=pytest.mark.slow), RAISING])
def test_slow_work_is_executed_once_and_once_more_where_it_raised(settings, raising):
    how = Slow(work_ms=50, messages=80)
    found = drain(settings, how, raising)
    assert found.raised == (4 if raising else 0)
    assert found.wall_s > 80 * 0.05 / 4
    assert found.ratio == pytest.approx(found.wall_s * 4 / (0.05 * (80 + found.raised)))
    # The busiest of four does at least a quarter, and no task is faster than its work.
    assert 80 / 4 <= found.busiest <= 80 + found.raised


@pytest.mark.slow
def test_messages_beside_a_long_tuple_are_measured(settings):
    found = beside(settings, Slow(long_ms=3_000))
    assert found.messages == 60
    assert 0 < found.p50_ms <= found.p99_ms <= found.max_ms
    assert found.p50_ms < 1_000


def test_uneven_work_is_measured_beside_an_ideal_queue(settings):
    found = uneven(settings, Slow(uneven_s=4.0), "exponential", None)
    assert found.messages == len(arrivals("exponential", 4, 4.0))
    assert 0 < found.ideal_p50_ms < found.ideal_p99_ms
    assert found.p50_ms <= found.p99_ms
    assert found.celery_p50_ms is None


@pytest.mark.slow
def test_a_task_at_half_speed_is_measured(settings):
    assert 0 < half_speed(settings, Slow(messages=40, half_ms=50)) <= 1.1


@pytest.mark.slow
def test_slow_work_has_a_curve(settings):
    how = Slow(curve_ms=(50, 5), curve_tasks=(2,), curve_s=1.0)
    rows = curve(settings, how, lambda _said: None)
    assert [(row["tasks"], row["work_ms"], row["messages"]) for row in rows] == [
        (2, 50, 40),
        (2, 5, 400),
    ]
    assert all(0 < row["share"] <= 1 for row in rows)


def test_steps_appends_and_hops_have_a_price(settings):
    found = inbox.measure(
        settings.redis_urls[0], inbox.Amount(calls=20, steps=20, hop_s=0.2, idle_s=1.0)
    )
    assert all(
        row["p50_ms"] > 0 for part in ("calls", "steps", "hops") for row in found[part].values()
    )
    assert all(cost > 0 for cost in costs_of(found).values())


def test_a_run_whose_words_are_not_those_of_its_sentences_does_not_count(settings):
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        client.hincrby("bench-counts", "word1", 7)
    with pytest.raises(BenchError, match="20,007 words were counted instead of 20,000"):
        contest.consumer("inline", settings, 2_000)
    clear(settings, ["bench-inline"])
